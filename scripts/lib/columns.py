"""Names the lines that are longer than 110 columns: comments in sources and scripts, and Markdown but for tables and code."""
import pathlib
import re
import subprocess
import sys

LIMIT = 110
ROOT = pathlib.Path(__file__).resolve().parents[2]


STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
C_LIKE = (".cpp", ".hpp", ".def", ".pml")


def has_comment(path: pathlib.Path, line: str) -> bool:
    """Of the module, which is written as the kernel is: whole lines, too, and tabs of eight columns."""
    plain = STRING.sub("", line)
    if path.suffix in (".c", ".h"):
        return "/*" in plain or "//" in plain or re.match(r"\s*\*( |/|$)", line) is not None
    if path.suffix in C_LIKE:
        return "//" in plain or "/*" in plain
    return re.search(r"(^|\s)# ", plain) is not None


def long_lines(path: pathlib.Path):
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if path.suffix == ".md":
            if line.lstrip().startswith("```"):
                fenced = not fenced
            if fenced or line.startswith("|") or " " not in line.strip():
                continue
        elif not has_comment(path, line):
            continue  # code is clang-format's affair
        if len(line.expandtabs(8)) > LIMIT:
            yield number


def main() -> None:
    patterns = ["*.cpp", "*.hpp", "*.c", "*.h", "*.def", "*.md", "*.pml", "*.py", "*meson.build", ".ci", "scripts", "tests/*",
                ":!docs/coverage.md", ":!tests/fuzz/seeds", ":!*.json", ":!*.svg"]
    names = subprocess.run(["git", "-C", ROOT, "ls-files", *patterns], capture_output=True, text=True, check=True).stdout
    found = [f"{name}:{number}" for name in names.splitlines() for number in long_lines(ROOT / name)]
    print("\n".join(found))
    sys.exit(1 if found else 0)


main()
