"""Reports lines of the pages that have more than 160 columns. Tables and code are excepted."""

import sys
from pathlib import Path

COLUMNS = 160


def too_long(page: Path) -> list[str]:
    found = []
    in_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        text = line.lstrip()
        if text.startswith("```"):
            in_code = not in_code
        if len(line) > COLUMNS and not in_code and not text.startswith("|"):
            found.append(f"{page}:{number}: {len(line)} columns, at most {COLUMNS} are allowed")
    return found


if __name__ == "__main__":
    pages = sorted([*Path().glob("*.md"), *Path("docs").rglob("*.md")])
    errors = [error for page in pages for error in too_long(page)]
    print(*errors, sep="\n", end="\n" if errors else "")
    sys.exit(1 if errors else 0)
