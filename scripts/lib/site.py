"""The documentation as a site: scripts/docs.

MkDocs takes a copy of the pages that has the layout of the source tree, so that the links between them stay as they
are. Three things are added to the copy: manual pages as pages of their own, sources that a page links to as text files,
and the navigation, by what the reader wants to do. Afterwards each link of what was built is followed.
"""
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "SocksDirect"
# Patterns of pages, first come first served; what none of them takes is for those who work on it.
SECTIONS = {
    "Use it": ["README.md", "docs/installing.md", "docs/compatibility.md", "docs/images.md", "docs/containers.md",
               "docs/kubernetes.md", "docs/two-hosts.md", "docs/rdma-devices.md", "docs/without-rdma.md",
               "docs/zero-copy.md", "docs/buffers.md", "docs/man/sd[a-z]*.1"],
    "Operate it": ["docs/operations.md", "docs/tracing.md", "docs/security.md", "docs/man/*"],
    "Understand it": ["docs/design.md", "docs/design/walk-*.md", "docs/design/*.md", "docs/glossary.md", "docs/performance.md",
                      "docs/performance-notes.md", "docs/notes/*.md"],
    "Work on it": ["CONTRIBUTING.md", "libsd/README.md", "libsd/*/README.md", "monitor/README.md"],
}
LINK = re.compile(r"(\]\(\s*<?)([^)<>\s]+)")
FENCE = re.compile(r"^(\s*)(```|~~~).*?^\s*\2\s*$", re.M | re.S)
PICTURES = (".svg", ".png")
# What the theme's pages load, and Debian's package has under another name or not at all (it only styles
# tables).
SCRIPTS = {"jquery-3.6.0.min.js": "/usr/share/javascript/jquery/jquery.min.js", "theme_extra.js": "/dev/null"}


def tracked(*patterns: str) -> list[str]:
    out = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted(name for name in out.split("\0") if name and (ROOT / name).is_file())


def page_of(name: str) -> str:
    """Where a file of the source tree is in the copy."""
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/man/"):
        return name + ".md"
    return name if name.endswith((".md", *PICTURES)) else name + ".txt"


def manual_page(path: pathlib.Path) -> str:
    roff = subprocess.run(["nroff", "-man", "-Tutf8", "-rLL=90n", path], check=True, stdout=subprocess.PIPE).stdout
    text = subprocess.run(["col", "-bx"], input=roff, check=True, stdout=subprocess.PIPE).stdout.decode()
    return f"# {path.stem}({path.suffix[1:]})\n\n````text\n{text.strip()}\n````\n"


class Copy:
    def __init__(self, folder: pathlib.Path):
        self.folder, self.todo, self.problems = folder, [], []
        self.done: set[str] = set()

    def add(self, name: str) -> None:
        if name not in self.done:
            self.done.add(name)
            self.todo.append(name)

    def make(self) -> None:
        while self.todo:
            name = self.todo.pop()
            target = self.folder / page_of(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if name.startswith("docs/man/"):
                target.write_text(manual_page(ROOT / name), encoding="utf-8")
            elif name.endswith(".md"):
                target.write_text(self.page(name), encoding="utf-8")
            else:
                shutil.copyfile(ROOT / name, target)

    def page(self, name: str) -> str:
        text = (ROOT / name).read_text(encoding="utf-8")
        kept: list[str] = []

        def keep(found: re.Match) -> str:
            kept.append(found.group(0))
            return f"\0{len(kept) - 1}\0"

        text = FENCE.sub(keep, text)
        text = LINK.sub(lambda found: found.group(1) + self.link(name, found.group(2)), text)
        return re.sub("\0(\\d+)\0", lambda found: kept[int(found.group(1))], text)

    def link(self, page: str, target: str) -> str:
        """The target as it is called in the copy; what it names comes along."""
        if re.match(r"[a-z][a-z0-9+.-]*:|#", target):
            return target
        path, mark, anchor = target.partition("#")
        place = os.path.normpath(os.path.join(os.path.dirname(page), urllib.parse.unquote(path)))
        if (ROOT / place).is_dir():
            inside = tracked(place + "/")
            readme = place + "/README.md"
            if readme not in inside and not inside:
                self.problems.append(f"{page}: {target} is not there")
                return target
            place = readme if readme in inside else inside[0]
        if not (ROOT / place).is_file() or place.startswith(".."):
            self.problems.append(f"{page}: {target} is not there")
            return target
        self.add(place)
        there = os.path.relpath(page_of(place), os.path.dirname(page_of(page)) or ".")
        return there + mark + anchor


def title_of(name: str) -> str:
    if name.startswith("docs/man/"):
        stem, section = os.path.basename(name).rsplit(".", 1)
        return f"{stem}({section})"
    if name == "README.md":
        return "Overview"
    heading = re.search(r"^#\s+(.*)$", (ROOT / name).read_text(encoding="utf-8"), re.M)
    return heading.group(1) if heading else name


def chapter_of(page: str, pages: list[str]) -> str:
    """The page of which this one is a part: CHAPTER-PART.md belongs to CHAPTER.md. Else the page itself."""
    names = page.removesuffix(".md").split("-")
    chapters = ("-".join(names[:n]) + ".md" for n in range(len(names) - 1, 0, -1))
    return next((name for name in chapters if name in pages), page)


def in_reading_order(pages: list[str]) -> list[str]:
    """Parts stand behind their chapter, in the order in which it links to them."""
    def place(page: str) -> tuple[str, int]:
        chapter = chapter_of(page, pages)
        if chapter == page:
            return page, -1
        folder, text = os.path.dirname(chapter), (ROOT / chapter).read_text(encoding="utf-8")
        links = [os.path.join(folder, found.group(2).partition("#")[0]) for found in LINK.finditer(text)]
        return chapter, links.index(page) if page in links else len(links)

    return sorted(pages, key=place)


def navigation(pages: list[str]) -> list:
    left, sections = list(pages), []
    for title, patterns in SECTIONS.items():
        taken = []
        for pattern in patterns:
            found = [page for page in left if pathlib.PurePath(page).match(pattern) and page.count("/") == pattern.count("/")]
            taken += in_reading_order(found)
            left = [page for page in left if page not in found]
        sections.append((title, taken))
    sections[-1][1].extend(left)
    return [{title: [{title_of(page): page_of(page)} for page in taken]} for title, taken in sections]


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.names = [], set()

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.names.add(value)
            if name in ("href", "src") and value is not None:
                self.links.append(value)


def broken_links(site: pathlib.Path) -> tuple[int, list[str]]:
    """Follows each link between files of the site, and into them."""
    pages, wrong, count = {}, [], 0
    for path in sorted(site.rglob("*.html")):
        pages[path] = Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links begin at the top of a server
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            count += 1
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            target = target / "index.html" if target.is_dir() else target
            where = path.relative_to(site)
            if not target.is_relative_to(site) or not target.exists():
                wrong.append(f"{where}: {link} is not there")
            elif url.fragment and target in pages and urllib.parse.unquote(url.fragment) not in pages[target].names:
                wrong.append(f"{where}: {link}: no such place")
    return count, wrong


def main() -> None:
    target = pathlib.Path(sys.argv[1]).resolve()
    if target.exists() and any(target.iterdir()) and not (target / "sitemap.xml").exists():
        sys.exit(f"{target} has something else in it")
    with tempfile.TemporaryDirectory() as scratch:
        copy, site = Copy(pathlib.Path(scratch, "pages")), pathlib.Path(scratch, "site")
        pages = [*tracked("*.md"), *tracked("docs/man/*")]
        for page in pages:
            copy.add(page)
        copy.make()
        (copy.folder / "js").mkdir()
        for name, source in SCRIPTS.items():
            (copy.folder / "js" / name).write_bytes(pathlib.Path(source).read_bytes())
        settings = {
            "site_name": NAME, "docs_dir": str(copy.folder), "site_dir": str(site), "nav": navigation(pages),
            "theme": {"name": "readthedocs", "highlightjs": False, "collapse_navigation": False}, "plugins": ["search"],
            "use_directory_urls": False, "strict": True,
            "markdown_extensions": [{"toc": {"permalink": False}}, "tables", "fenced_code", "attr_list"],
        }
        config = pathlib.Path(scratch, "mkdocs.yml")
        config.write_text(json.dumps(settings), encoding="utf-8")  # which is YAML
        built = subprocess.run(["mkdocs", "build", "--strict", "--quiet", "--config-file", config], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        count, wrong = broken_links(site) if built.returncode == 0 else (0, [])
        said = built.stdout.strip().splitlines()
        wrong = copy.problems + said + wrong
        if not wrong and not (site / "search" / "search_index.json").exists():
            wrong.append("there is no search index")
        if wrong or built.returncode != 0:
            sys.exit("\n".join(wrong) or f"mkdocs ended with {built.returncode}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(site, target)
    print(f"{target}: {len(pages)} pages, {count} links lead somewhere")


main()
