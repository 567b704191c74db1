"""What the site has beside `docs/`: pages from the top and from the code, `llms.txt`; and links that work in both places.

MkDocs calls the functions that begin with ``on_`` (`mkdocs.yml`, ``hooks``). Pages are written for a
forge, whose links may lead anywhere in the tree. The site has pages alone, so that a link to a source
becomes its text there.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

from tools.site_references import commands, error_page, errors, functions

ROOT = Path(__file__).resolve().parent.parent

TOP = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages at the top of the tree, and what they are called on the site."""

MADE = {"commands.md": commands, "functions.md": functions}
"""Pages that stand nowhere, and are made from the code at each build."""

MERMAID = "mermaid@11.17.2"
SCRIPT = "assets/mermaid.min.js"
FETCH_SECONDS_MAX = 300

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)

_listed: dict[str, list[str]] = {}
"""Of the build under way: the lines of `llms.txt` by the section of the navigation."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top, and the script that draws pictures."""
    for name, on_site in TOP.items():
        files.append(File.generated(config, on_site, content=(ROOT / name).read_text("utf-8")))
    for on_site, made in MADE.items():
        files.append(File.generated(config, on_site, content=made()))
    for on_site, text in errors().items():
        files.append(File.generated(config, on_site, content=text))
    files.append(File.generated(config, SCRIPT, abs_src_path=str(mermaid())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site, or be text, and the code of an error to a page of its own."""
    on_site = page.file.src_uri
    if on_site == "errors.md":
        return re.sub(
            r"(?m)^## (\w+)$", lambda code: f"## [{code[1]}]({error_page(code[1])})", markdown
        )
    return markdown if on_site.startswith("errors/") else relinked(markdown, on_site)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Remember the sections, for `llms.txt`."""
    _listed.clear()
    for section in nav.items:
        if isinstance(section, Section):
            _listed[section.title] = [
                page.file.src_uri for page in section.children if isinstance(page, Page)
            ]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt`: the navigation, each page by its title and the first sentence of it."""
    Path(config.site_dir, "llms.txt").write_text(listing(_listed), encoding="utf-8")


def relinked(markdown: str, on_site: str) -> str:
    """Return a page with links that lead to pages of the site; code stays as it is."""
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_relinked_prose(markdown[end : fence.start()], on_site), fence[0]]
        end = fence.end()
    return "".join([*parts, _relinked_prose(markdown[end:], on_site)])


def _relinked_prose(prose: str, on_site: str) -> str:
    source = source_of(on_site)

    def replaced(link: re.Match[str]) -> str:
        path, mark, anchor = link[2].partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        is_file_of_docs = target.startswith("docs/") and posixpath.splitext(target)[1]
        if target not in TOP and not is_file_of_docs:
            return link[1]
        there = TOP.get(target, target.removeprefix("docs/"))
        relative = posixpath.relpath(there, posixpath.dirname(on_site) or ".")
        return f"[{link[1]}]({relative}{mark}{anchor})"

    return _LINK.sub(replaced, prose)


def source_of(on_site: str) -> str:
    """Return where in the tree a page of the site lies."""
    return {there: name for name, there in TOP.items()}.get(on_site, f"docs/{on_site}")


def listing(sections: dict[str, list[str]]) -> str:
    """Return the text of `llms.txt`."""
    top = (ROOT / "README.md").read_text("utf-8")
    lines = ["# upsertflow", "", f"> {first_sentence(top)}"]
    for section, pages in sections.items():
        lines += ["", f"## {section}", "", *_entries(pages)]
    return "\n".join(lines) + "\n"


def _entries(pages: list[str]) -> Iterator[str]:
    for on_site in pages:
        made = MADE.get(on_site)
        text = made() if made else (ROOT / source_of(on_site)).read_text("utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        there = on_site.removesuffix(".md").removesuffix("README").removesuffix("index")
        yield f"- [{title}]({there.rstrip('/') + '/' if there else './'}): {first_sentence(text)}"


def first_sentence(text: str) -> str:
    """Return the first sentence of a page, without links and stars."""
    prose = _FENCE.sub("", text)
    paragraphs = [part.strip() for part in prose.split("\n\n")]
    first = next(part for part in paragraphs if part and not part.startswith(("#", "<!--", "|")))
    plain = _LINK.sub(r"\1", " ".join(first.split())).replace("**", "")
    return re.split(r"(?<=\.)\s", plain, maxsplit=1)[0].removesuffix(":")


def mermaid() -> Path:
    """Return the script that draws pictures, which npm gives once."""
    folder = ROOT / ".servers" / MERMAID.replace("@", "-")
    script = folder / "mermaid.min.js"
    if script.exists():
        return script
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as there:
        subprocess.run(
            ["npm", "pack", "--silent", MERMAID],
            cwd=there,
            check=True,
            timeout=FETCH_SECONDS_MAX,
            stdout=subprocess.DEVNULL,
        )
        (packed,) = Path(there).glob("*.tgz")
        with tarfile.open(packed) as archive:
            content = archive.extractfile("package/dist/mermaid.min.js")
            assert content is not None, f"{MERMAID} has no script for browsers"
            made = Path(there, script.name)
            made.write_bytes(content.read())
        made.replace(script)
    return script
