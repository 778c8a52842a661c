"""What a model reads and answers, what a data set gives: enough to refuse a pair that cannot work, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from orch.errors import OrchError, Position


@dataclass(frozen=True, slots=True)
class Image:
    """Images [channels, height, width] of floats."""

    channels: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"images {self.channels}x{self.height}x{self.width}"

    @property
    def numel(self) -> int:
        """Numbers of one image."""
        return self.channels * self.height * self.width


@dataclass(frozen=True, slots=True)
class Flat:
    """Any numbers, read as one row: images are flattened."""

    numel: int

    def __str__(self) -> str:
        return f"rows of {self.numel} numbers"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sequences of token numbers below `vocab`; a data set leaves `seq_len` to the model (None)."""

    vocab: int
    seq_len: int | None = None

    def __str__(self) -> str:
        length = f" {self.seq_len}" if self.seq_len is not None else ""
        return f"sequences of{length} tokens below {self.vocab}"


@dataclass(frozen=True, slots=True)
class Classes:
    """One of `number` classes a sample."""

    number: int

    def __str__(self) -> str:
        return f"one of {self.number} classes"


@dataclass(frozen=True, slots=True)
class NextToken:
    """The token that follows, at every position."""

    def __str__(self) -> str:
        return "the next token"


@dataclass(frozen=True, slots=True)
class MaskedToken:
    """The hidden tokens, and whether the second half of the sequence really follows the first: BERT's pre-training.
    Hidden tokens are replaced by numbers below `vocab`, the last of which means hidden.
    """

    vocab: int

    def __str__(self) -> str:
        return "the masked tokens"


Reads = Image | Flat | Tokens
Answers = Classes | NextToken | MaskedToken


@dataclass(frozen=True, slots=True)
class Interface:
    """What a model reads and answers, or what a data set gives as input and target."""

    reads: Reads
    answers: Answers


def refuse_mismatch(model: str, wants: Interface, data: str, gives: Interface, where: Position | None = None) -> None:
    """Raise OrchError (E430) when `model` cannot be trained on `data`: what each means, and the knob that mends it."""
    reads, offered = wants.reads, gives.reads
    found = f"model {model} reads {reads}, data {data} gives {offered}"
    if isinstance(reads, Tokens) != isinstance(offered, Tokens):
        hint = "choose a language model" if isinstance(offered, Tokens) else "choose text for a language model"
        raise OrchError(found, code="E430", where=where, hint=hint)
    if isinstance(reads, Tokens) and isinstance(offered, Tokens):
        if offered.vocab > reads.vocab:
            raise OrchError(found, code="E430", where=where, hint=f"set model.vocab={offered.vocab} or more")
        return
    if isinstance(reads, Image) and reads != offered:
        raise OrchError(found, code="E430", where=where, hint=_image_hint(reads, offered))
    if isinstance(reads, Flat) and not isinstance(offered, Tokens) and offered.numel != reads.numel:
        raise OrchError(found, code="E430", where=where, hint=f"set model.inputs={offered.numel}")
    answered, asked = wants.answers, gives.answers
    if isinstance(answered, Classes) and isinstance(asked, Classes) and asked.number > answered.number:
        message = f"model {model} answers {answered}, data {data} has {asked.number} classes"
        raise OrchError(message, code="E430", where=where, hint=f"set model.num_classes={asked.number}")


def _image_hint(reads: Image, offered: Reads) -> str:
    if not isinstance(offered, Image) or offered.height != offered.width:
        return "choose data with images"
    wanted = []
    if reads.channels != offered.channels:
        wanted.append(f"model.channels={offered.channels}")
    if reads.height != offered.height:
        wanted.append(f"model.image_size={offered.height}")
    return f"set {' '.join(wanted)}"
