"""Train edge-tiny: python train.py --out run --tokens 60_000_000

Ends when the tokens or the minutes are used up, or at SIGTERM or SIGINT after the step in hand; each time the whole
state is saved, and --resume continues exactly there: the same batches in the same order, so the same weights (bit for
bit on the same machine and version of torch), whatever --threads is. Before the learning rate starts to fall the state
is kept in stable.pt as well: copied over latest.pt and resumed with a larger --tokens, it extends the run.
"""

from __future__ import annotations

import os

# Steps run one batch per thread; operations inside must not start threads of their own.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import dataclasses
import signal
import sys
from pathlib import Path
from time import monotonic
from typing import Any, Final

import torch
from edgetiny.batches import conversations
from edgetiny.export import load_weights
from edgetiny.held_out import HeldOut
from edgetiny.model import EdgeTiny
from edgetiny.run_folder import RunFolder
from edgetiny.schedule import Schedule
from edgetiny.shape import CONFIG
from edgetiny.training import Settings, Trainer
from generate import write_tokenizer

from edgellm.checkpoint.spec import ModelSpec

_LOG_SECONDS: Final = 10.0


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    folder = RunFolder(args.out)
    state = folder.load() if args.resume else None
    if state is None and (folder.path / "latest.pt").exists():
        sys.exit(f"{folder.path} holds a run: --resume continues it")
    config, seed = (dict(CONFIG), args.seed) if state is None else (state["config"], state["seed"])
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(Settings) if field.name in args}
    settings = Settings(**{**(state["settings"] if state is not None else {}), **given})
    ripening = int(0.4 * args.tokens) if state is None else state["ripening"]
    if not (folder.tokenizer / "tokenizer.json").is_file():
        write_tokenizer(folder.tokenizer)
    model = EdgeTiny(ModelSpec.from_config(config), seed)
    if args.init and state is None:
        load_weights(model, args.init)
    schedule = Schedule(args.tokens, args.warmup, args.decay, 0 if args.init else ripening)
    sample = conversations(seed, "train", folder.tokenizer)
    trainer = Trainer(
        model, sample, schedule, settings, threads=args.threads, state=None if state is None else state["trainer"]
    )
    fixed = {
        "config": config, "seed": seed, "settings": dataclasses.asdict(settings), "ripening": schedule.ripening
    }  # fmt: skip
    _run(trainer, folder, fixed, args)


def _run(trainer: Trainer, folder: RunFolder, fixed: dict[str, Any], args: argparse.Namespace) -> None:
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: stopping.append(signum))
    held_out = HeldOut(folder.tokenizer, args.held_out)
    begin = saved = logged = checked = monotonic()
    counted = trainer.tokens

    def save(name: str = "latest.pt") -> None:
        folder.save({**fixed, "trainer": trainer.state()}, name)

    def check() -> None:
        entry = {"step": trainer.steps, "tokens": trainer.tokens, "held_out": held_out.check(trainer.model)}
        folder.log(entry)
        print(entry, flush=True)

    while trainer.tokens < args.tokens and not stopping:
        stable = trainer.tokens < trainer.schedule.decay_start
        entry = trainer.step()
        now = monotonic()
        if now - logged >= _LOG_SECONDS:
            entry["tokens_per_s"] = round((trainer.tokens - counted) / (now - logged))
            counted, logged = trainer.tokens, now
            print(entry, flush=True)
        folder.log({**entry, "seconds": round(now - begin, 1)})
        if stable and trainer.tokens >= trainer.schedule.decay_start:
            save("stable.pt")
        if now - saved >= 60 * args.save_minutes:
            save()
            saved = monotonic()
        if now - checked >= 60 * args.check_minutes:
            check()
            checked = monotonic()
        if args.minutes is not None and now - begin >= 60 * args.minutes:
            break
    save()
    if not stopping:
        check()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--tokens", type=int, required=True, help="length of the whole run; may change when resumed")
    parser.add_argument("--minutes", type=float, help="stop (not decay) after this time; resume later")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="batches that are computed at the same time")
    parser.add_argument(
        "--resume", action="store_true", help="continue the run of --out; what is not given stays as it is"
    )
    parser.add_argument("--init", type=Path, help="exported checkpoint to start from, at the last curriculum stage")
    parser.add_argument("--warmup", type=int, default=500_000, help="tokens of learning rate warm-up")
    parser.add_argument("--decay", type=float, default=0.2, help="last share of the run, over which the rate falls")
    parser.add_argument("--save-minutes", type=float, default=3.0)
    parser.add_argument("--check-minutes", type=float, default=10.0)
    parser.add_argument("--held-out", type=int, default=64, help="conversations of a check")
    for field in dataclasses.fields(Settings):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=argparse.SUPPRESS, help=f"{field.default} at first")
    return parser.parse_args()


if __name__ == "__main__":
    main()
