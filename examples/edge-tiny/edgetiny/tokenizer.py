"""The tokenizer of edge-tiny: byte-level BPE in which a word is the same tokens wherever it stands.

What must stay true: letters, digits, spaces and newlines never share a token, and neither do a value and what stands
around it; any text round-trips; the vocabulary has exactly `VOCAB` tokens, the family's special tokens last. Frequent
pieces of the chat format and of schemas (`literals`) are ordinary tokens of their own: they are cut out before BPE.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE

from edgellm.checkpoint.small_tokenizer import SPECIAL_TOKENS, byte_alphabet, write_tokenizer_config
from edgellm.checkpoint.synth import family_template
from edgellm.text.template import ChatTemplate

VOCAB: Final = 4096
_SCHEMA_PIECES: Final = (
    '\n{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {"',
    *(
        f'": {{"type": "{kind}", "description": "'
        for kind in ("string", "integer", "number", "boolean", "array", "object")
    ),
    *(f'": {{"type": "{kind}"}}, "' for kind in ("string", "integer", "number", "boolean")),
    '": {"description": "',
    '"}, "',
    '"}}, "required": ["',
    '"]}, "',
    '"]}}, "required": ["',
    '", "enum": ["',
    '", "items": {"type": "string"}}, "',
    '", "items": {"type": "integer"}}, "',
    '", "items": {"type": "string"}}}, "required": ["',
    '", "items": {"type": "integer"}}}, "required": ["',
    '", "properties": {"',
    '"]}}}',
    '"}}}}}',
    '", "parameters": {"type": "object", "properties": {}}}}',
    '", "',
    '": "',
)
_CALL_PIECES: Final = (
    "\n<function=",
    ">\n<parameter=",
    ">\n",
    "\n</parameter>\n<parameter=",
    "\n</parameter>\n</function>\n",
    ">\n</function>\n",
    "</function>\n",
)
# After the literals: a word (with its first letter's case), a run of capitals, a digit, spaces, newlines, a run of the
# marks of JSON and prose with the spaces between them, any other character.
_CLASSES: Final = (
    r"\p{Lu}?[\p{Ll}\p{Lo}\p{Lm}\p{M}]+|\p{Lu}+(?!\p{Ll})|\p{N}| ?[\[\]{}\":,()]+(?: [\[\]{}\":,()]+)* ?| +|\n+|\s|."
)


def chat_template() -> ChatTemplate:
    """The template, compiled."""
    return ChatTemplate(family_template(), "edge-tiny: chat template")


def literals() -> tuple[str, ...]:
    """Pieces of text that are one token each, the longest first."""
    tool = {"type": "function", "function": {"name": "x"}}
    text = chat_template().render(messages=[{"role": "user", "content": "x"}], tools=[tool])
    system = text[: text.index("<|im_end|>")]
    lead, _, rules = system.partition('\n{"type"')
    special = "|".join(map(re.escape, SPECIAL_TOKENS))
    fixed = [
        re.split(special, lead)[-1].removeprefix("system\n"),
        *re.split(special, rules[rules.index("\n</tools>") :]),
    ]
    return tuple(
        sorted({*(piece for piece in fixed if piece), *_SCHEMA_PIECES, *_CALL_PIECES}, key=lambda p: (-len(p), p))
    )


def train(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer for text like `texts`, which is rendered chats."""
    pieces = literals()
    splitter = _splitter(pieces)
    counts = Counter[str]()
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    for text in texts:
        for part in special.split(text):
            counts.update(piece for piece, _ in splitter.pre_tokenize_str(part) if piece not in pieces)
    # The square root keeps common words from crowding out the syllables that rare ones are made of.
    words = (word for word, count in sorted(counts.items()) for _ in range(round(count**0.5)))
    learner = Tokenizer(BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(pieces) - len(SPECIAL_TOKENS),
        min_frequency=1,
        initial_alphabet=sorted(byte_alphabet().values()),
        show_progress=False,
        max_token_length=24,
    )
    learner.train_from_iterator(words, trainer)
    return _assembled(learner, pieces, splitter)


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer files and the chat template of a checkpoint into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_tokenizer_config(folder)
    (folder / "chat_template.jinja").write_text(family_template(), encoding="utf-8")


def _splitter(pieces: Iterable[str]) -> Any:
    pattern = "|".join([*map(_quoted, pieces), _CLASSES])
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _quoted(piece: str) -> str:
    """`piece` as a pattern of the tokenizer's regular expressions."""
    return re.sub(r"[^A-Za-z0-9 \n]", lambda match: "\\" + match[0], piece)


def _assembled(learner: Tokenizer, pieces: Iterable[str], splitter: Any) -> Tokenizer:
    alphabet = byte_alphabet()
    learned = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    names = [token for token, _ in learned]
    names += ["".join(alphabet[byte] for byte in piece.encode()) for piece in pieces]
    if len(set(names)) != VOCAB - len(SPECIAL_TOKENS):
        raise ValueError(f"{len(set(names))} ordinary tokens instead of {VOCAB - len(SPECIAL_TOKENS)}: too little text")
    known = set(names)
    merges = [pair for pair in _merges(learner) if pair[0] in known and pair[1] in known]
    tokenizer = Tokenizer(BPE({token: n for n, token in enumerate(names)}, merges, ignore_merges=True))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splitter, level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=s) for name, s in SPECIAL_TOKENS.items()])
    return tokenizer


def _merges(learner: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
