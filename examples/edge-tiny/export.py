"""Write a trained state as a checkpoint of the family: python export.py run/latest.pt edge-tiny"""

from __future__ import annotations

import argparse
from pathlib import Path

from edgetiny.export import export
from edgetiny.model import EdgeTiny
from edgetiny.run_folder import RunFolder

from edgellm.checkpoint.spec import ModelSpec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state", type=Path, help="latest.pt or stable.pt in the folder of a run")
    parser.add_argument("out", type=Path, help="folder to make")
    args = parser.parse_args()
    folder = RunFolder(args.state.parent)
    state = folder.load(args.state.name)
    model = EdgeTiny(ModelSpec.from_config(state["config"]))
    model.load_state_dict(state["trainer"]["model"])
    export(model, folder.tokenizer, args.out)


if __name__ == "__main__":
    main()
