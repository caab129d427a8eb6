#!/usr/bin/env python3
"""A thread may hold any lock of libsd while another one forks: in the child each is free.

Run without arguments from anywhere. Prints each lock or pool that is not reset in its file by a function that
runs in children, and each such function that is not in the list of vfs::fork_child() or of libsd/api/init.cpp.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = ["libsd/vfs/family/process.cpp", "libsd/api/init.cpp"]
ELSEWHERE = {"call_lock": "libsd/control/forking.cpp", "provide_lock": "libsd/vfs/readiness/epoll/epoll_items.cpp"}
LOCK = re.compile(r"^(?:SD_FORK_STATE )?(?:constinit )?(?:Lock|BiasedLock|Pool<\w+>) (\w+)(?:\[\w+\])?;", re.MULTILINE)


def functions(text: str) -> dict[str, str]:
    """Of a file: what its functions that run in children do."""
    found = {}
    for match in re.finditer(r"^SD_FORK_CODE (?:void|bool) (\w*(?:fork_child|_in_child))\(\) noexcept \{", text, re.MULTILINE):
        depth, at = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        found[match[1]] = text[match.end():at]
    return found


def main() -> None:
    wrong, locks = [], 0
    lists = "".join((ROOT / path).read_text(encoding="utf-8") for path in LISTS)
    for path in sorted((ROOT / "libsd").rglob("*.cpp")):
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        for lock in LOCK.findall(text):
            locks += 1
            resets = functions((ROOT / ELSEWHERE.get(lock, name)).read_text(encoding="utf-8"))
            if not any(re.search(rf"\b{lock}\.reset(?:_lock)?\(|: {lock}\)", body) for body in resets.values()):
                wrong.append(f"{name}: {lock} may be held in a child for ever")
        for function in functions(text):
            if not re.search(rf"\b{function}\(\);|= {function}\b|&& {function}\(|\.reset_in_child = {function}", lists):
                wrong.append(f"{name}: no child runs {function}()")
    print("\n".join(wrong) if wrong else f"{locks} locks are free in a child")
    sys.exit(1 if wrong or locks < 20 else 0)


main()
