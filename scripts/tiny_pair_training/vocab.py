"""Tokenizer of the tiny pair: one token for each piece of its text, bytes for anything else."""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from specswitch.tiny_pair.text import BREAK, EOS, RINGERS, SYLLABLES, WORDS, vocabulary

UNDRAFTED = 6
"""One syllable and one ringer in this many cannot be drafted."""

_WHOLE = "|".join((*WORDS, *RINGERS))
# Line start with its mark, whole words, syllables, single characters.
_PATTERN = rf"\n[>*-]?| ?(?:{_WHOLE})(?![A-Za-z])| ?[A-Za-z][aeiou][a-z]| ?[^\n]"


def _byte_letters() -> dict[int, str]:
    """The printable letter that byte-level tokenizers write for each byte."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = {}
    for byte in range(128):
        letters[byte] = level.pre_tokenize_str(chr(byte))[0][0]
    rest = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(letters.values()), key=ord)
    # Printable Latin-1 bytes stand for themselves; the others take the next letters, in order.
    own = [b for b in range(128, 256) if chr(b) in rest]
    letters.update({b: chr(b) for b in own})
    spare = [c for c in rest if ord(c) > 255]
    letters.update(dict(zip([b for b in range(128, 256) if b not in letters], spare, strict=True)))
    return letters


def build_tokenizer() -> Tokenizer:
    """Special tokens, then the 256 bytes, then the longer pieces of `vocabulary()`."""
    letters = _byte_letters()
    names = [BREAK, EOS, *(letters[b] for b in range(256))]
    names += ["".join(letters[b] for b in piece.encode()) for piece in vocabulary()]
    vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
    # No merges: a pre-token is in the vocabulary (ignore_merges) or falls apart into bytes.
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(BREAK, special=True), AddedToken(EOS, special=True)])
    return tokenizer


def piece_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Token id of each piece of the text, and of `BREAK` and `EOS`.

    Raises:
        AssertionError: a piece is not exactly one token.
    """
    out = {}
    for piece in (BREAK, EOS, *vocabulary()):
        ids = tokenizer.encode(piece).ids
        assert len(ids) == 1, f"{piece!r} becomes {len(ids)} tokens"
        out[piece] = ids[0]
    return out


def draft_pieces() -> list[str]:
    """What the EAGLE3 head can draft: `EOS` and the text, less one name part in `UNDRAFTED`.

    Heads of large models cover the frequent tokens only. Here the gap has a second use: a head
    that knows every token drafts this text without a single miss, and then no test would ever see
    a rejected draft.
    """
    gone = {f" {name}" for name in RINGERS[::UNDRAFTED]}
    for syllable in SYLLABLES[::UNDRAFTED]:
        gone |= {syllable, f" {syllable}", f" {syllable.capitalize()}"}
    return [EOS, *(piece for piece in vocabulary() if piece not in gone)]
