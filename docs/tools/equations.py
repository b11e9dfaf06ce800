"""Equations of a contract, which are plain text in Unicode, as HTML with MathML.

The docstrings of the contracts are the only copy of the equations. Browsers draw MathML without a
script or a font of another machine.

>>> str(inline("w_k"))
'<math><msub><mi>w</mi><mi>k</mi></msub></math>'
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple, final

from markupsafe import Markup, escape

WORDS = frozenset(
    [
        *("CE", "KL", "KD", "MSE", "MMD", "ArcFace", "exp", "log", "max", "min", "mean", "argmax"),
        *("argmin", "softmax", "sign", "cos", "clip", "tanh", "concat", "diversity"),
    ]
)
"""Names of functions, which belong to an equation; other words are text."""
ACCENTS = {"\u0302": "^", "\u0304": "¯", "\u0303": "~"}
SUPERSCRIPTS, SUBSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "₀₁₂₃₄₅₆₇₈₉"
TOKEN = re.compile(
    r"``(?P<code>[^`]+)``"
    r"|(?P<word>[A-Za-z][A-Za-z]+(?:[-'’][A-Za-z]+)*)(?![\u0302-\u0304])"
    rf"|(?P<sup>\^|[{SUPERSCRIPTS}]+)|(?P<sub>_|[{SUBSCRIPTS}]+)"
    r"|(?P<number>\.?\d+(?:[.,]\d+)*)|(?P<letter>[^\W\d_][\u0302-\u0304]?)"
    r"|(?P<space>\s+)|(?P<mark>.)"
)
OPEN, CLOSE = "([{⟨⌊⌈", ")]}⟩⌋⌉"


@final
class Token(NamedTuple):
    """A part of an equation: ``kind`` is the name of a group of ``TOKEN``."""

    kind: str
    text: str


def tokens(text: str) -> list[Token]:
    """Split a line into tokens; a letter with an accent is decomposed into both."""
    plain = "".join(
        unicodedata.normalize("NFD", c) if unicodedata.normalize("NFD", c)[-1] in ACCENTS else c
        for c in text
    )
    found = (match for match in TOKEN.finditer(plain))
    return [Token(match.lastgroup or "mark", match[match.lastgroup or 0]) for match in found]


def line(text: str) -> Markup:
    """Return a line of an equation as HTML: words are text, everything else is MathML."""
    spans = []
    for is_math, run in groupby(_classified(tokens(text.strip())), key=lambda pair: pair[0]):
        run_tokens = [token for _, token in run]
        if is_math:
            spans.append(_math(run_tokens))
        else:
            spans.append(Markup("").join(_text(token) for token in run_tokens))
    return Markup("").join(spans)


def inline(text: str) -> Markup:
    """Return a single symbol, such as ``w_k``, as MathML."""
    return _math(tokens(text))


def _classified(found: list[Token]) -> Iterator[tuple[bool, Token]]:
    """Yield each token with whether it is mathematics. Brackets keep their content together."""
    depth, is_text, before = 0, False, Token("space", "")
    for i, token in enumerate(found):
        if token.kind == "mark":
            depth += (token.text in OPEN) - (token.text in CLOSE)
        script = before.kind in ("sub", "sup")
        word = token.kind == "word" and not _named(token.text) and not script
        article = token == Token("letter", "a") and _next_word(found, i)
        stop = is_text and token.kind == "mark" and token.text in ":,.;"
        wide = token.kind == "space" and len(token.text) > 2
        text_here = token.kind == "code" or word or article or stop
        is_text = wide or (depth == 0 and text_here)
        before = token
        yield not is_text, token


def _next_word(found: list[Token], i: int) -> bool:
    return len(found) > i + 2 and found[i + 1].kind == "space" and found[i + 2].kind == "word"


def _named(word: str) -> bool:
    return word in WORDS or (len(word) == 2 and word[0] in "dnf" and word[1].isupper())


def _text(token: Token) -> Markup:
    if token.kind == "code":
        return Markup("<code>{}</code>").format(token.text)
    if token.kind == "space":
        return Markup('<span class="gap"></span>') if len(token.text) > 2 else Markup(" ")
    return escape(token.text)


def _math(tokens_: list[Token]) -> Markup:
    """Return tokens as one ``<math>`` element, with the blanks around it outside."""
    before = Markup(" ") if tokens_ and tokens_[0].kind == "space" else Markup("")
    after = Markup(" ") if len(tokens_) > 1 and tokens_[-1].kind == "space" else Markup("")
    if all(token.kind == "space" for token in tokens_):
        return before
    body, _ = _row(tokens_, 0, "")
    return Markup("{}<math>{}</math>{}").format(before, body, after)


def _row(found: list[Token], i: int, end: str) -> tuple[Markup, int]:
    """Return the MathML of the tokens from ``i`` to the mark ``end``, and the index after it."""
    out: list[Markup] = []
    while i < len(found) and not (end and found[i] == Token("mark", end)):
        if found[i].kind in ("sup", "sub") and out:
            script, kind, i = _script(found, i)
            if i < len(found) and found[i].kind in {"sup", "sub"} - {kind}:
                second, _, i = _script(found, i)
                low, high = (script, second) if kind == "sub" else (second, script)
                out[-1] = Markup("<msubsup>{}{}{}</msubsup>").format(out[-1], low, high)
            else:
                out[-1] = Markup("<m{0}>{1}{2}</m{0}>").format(kind, out[-1], script)
        elif found[i].kind == "space":
            i += 1
        else:
            out.append(_atom(found[i]))
            i += 1
    return Markup("").join(out), i + 1 if end else i


def _script(found: list[Token], i: int) -> tuple[Markup, str, int]:
    """Return the MathML of a subscript or superscript at ``i``, its kind and the index after it."""
    kind, text = found[i]
    if text not in "^_":
        digits = unicodedata.normalize("NFKC", text).replace("−", "-")
        return Markup("<mn>{}</mn>").format(digits.replace("-", "−")), kind, i + 1
    i += 1
    if i < len(found) and found[i] == Token("mark", "{"):
        body, i = _row(found, i + 1, "}")
        return Markup("<mrow>{}</mrow>").format(body), kind, i
    atoms = []
    while i < len(found) and found[i].kind in ("word", "letter", "number"):
        atoms.append(_atom(found[i]))
        i += 1
    body = Markup("").join(atoms)
    return (Markup("<mrow>{}</mrow>").format(body) if len(atoms) != 1 else body), kind, i


def _atom(token: Token) -> Markup:
    kind, text = token
    if kind == "letter" and text[-1] in ACCENTS and len(text) > 1:
        accent = Markup("<mover><mi>{}</mi><mo>{}</mo></mover>")
        return accent.format(text[0], ACCENTS[text[-1]])
    if text == "Σ":
        return Markup("<mo>∑</mo>")
    if kind in ("letter", "word"):
        is_text = kind == "word" and not _named(text) and len(text) > 3
        return (Markup("<mtext> {} </mtext>") if is_text else Markup("<mi>{}</mi>")).format(text)
    if kind == "number":
        return Markup("<mn>{}</mn>").format(text)
    if kind == "code":
        return Markup("<mtext>{}</mtext>").format(text)
    stretch = Markup(' stretchy="false"') if text in OPEN + CLOSE + "|‖/" else Markup("")
    return Markup("<mo{}>{}</mo>").format(stretch, text)
