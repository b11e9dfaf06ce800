"""Hooks of mkdocs: add the generated pages and the files of the repository that pages link to."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)] * (str(ROOT) not in sys.path)

from docs.tools import method_page, paper_page, reference_page  # noqa: E402
from tests.papers.claims_page import named  # noqa: E402

FRONT = {
    "index.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
}
"""Pages of the site that are files of the repository's root."""
GENERATED: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "Methods": method_page.pages,
    "Results": paper_page.pages,
    "Reference": reference_page.pages,
}
"""Functions that return further pages by path, by the section of the navigation that lists them."""
DETAIL = re.compile(r"-comparisons|/records/")
"""Pages that the navigation leaves out; another page links to each."""
RECORD = re.compile(r"\]\(\.\./(?:tests/papers|deploy/experiments)/results/(\w+)/\1\.md")
PAPER = re.compile(r"^### Claims of (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Generate the pages, and list them in the navigation."""
    config.extra["generated"] = {}
    for section, generate in GENERATED.items():
        pages = generate()
        config.extra["generated"] |= pages
        (entries,) = (group[section] for group in config.nav or [] if section in group)
        listed = re.findall(r"[\w/-]+\.md", str(entries))
        entries += [path for path in pages if path not in listed and not DETAIL.search(path)]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages, the pages of the repository's root, and what they link to."""
    pages = {to: (ROOT / path).read_text(encoding="utf-8") for to, path in FRONT.items()}
    for path, text in {**pages, **config.extra["generated"]}.items():
        files.append(File.generated(config, path, content=text))
    linked = {*Path(config.docs_dir).glob("*.md"), *(ROOT / path for path in FRONT.values())}
    texts = {page: with_generated_links(page.read_text(encoding="utf-8")) for page in linked}
    texts |= {ROOT / path: text for path, text in config.extra["generated"].items()}
    targets = {(page.parent / to).resolve() for page in texts for to in LINK.findall(texts[page])}
    for target in sorted(targets):
        path = target.relative_to(ROOT).as_posix()
        if target.is_file() and path not in FRONT.values() and not path.startswith("docs/"):
            files.append(File.generated(config, path, content=target.read_bytes()))
    return files


def with_generated_links(text: str) -> str:
    """Return a page that links to the generated pages of papers and records, not to their files."""
    text = RECORD.sub(r"](results/records/\1.md", text)
    return PAPER.sub(lambda of: f"### Claims of [{of[1]}](results/{named(of[1])}.md)", text)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Raise ``PluginError`` if a page links to a missing file or loads one of another machine."""
    pages = {path: Links(path) for path in Path(config.site_dir).resolve().rglob("*.html")}
    pages.pop(Path(config.site_dir).resolve() / "404.html")  # its links start at a server's root
    if wrong := [line for links in pages.values() for line in links.wrong(pages)]:
        raise PluginError("broken links:\n" + "\n".join(wrong))


class Links(HTMLParser):
    """Links and anchors of a built page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.anchors = path, {""}
        self.targets: list[tuple[str, str]] = []  # tag, target
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values.get("id") or "", values.get("name") or ""}
        for name in ("href", "src"):
            if (target := values.get(name)) is not None:
                self.targets.append((tag, target))

    def wrong(self, pages: Mapping[Path, "Links"]) -> Iterator[str]:
        """Yield a line for each link that has no target, and each remote file that a page loads."""
        for tag, target in self.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                if tag != "a" and url.scheme != "data":
                    yield f"{self.path}: <{tag}> loads {target}"
                continue
            path = (self.path.parent / unquote(url.path)).resolve() if url.path else self.path
            known = pages[path].anchors if path in pages else {"", url.fragment}
            if not path.exists() or unquote(url.fragment) not in known:
                yield f"{self.path}: no target of {target}"


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Return a page with links that are relative to the site instead of the repository."""
    if page.file.src_uri in FRONT:
        return re.sub(r"(\]\(|src=\")docs/", r"\1", markdown).replace("](README.md", "](index.md")
    if "/" not in page.file.src_uri:
        text = with_generated_links(markdown)
        return re.sub(r"\]\(\.\./", "](", text).replace("](README.md", "](index.md")
    return markdown
