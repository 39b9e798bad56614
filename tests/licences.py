"""Print the licence of every package in requirements.lock that is installed: python -m tests.licences

Exit code 1 if a package does not state its licence.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"


def locked() -> list[str]:
    return sorted(set(re.findall(r"^([\w.-]+)==", LOCK.read_text(), re.MULTILINE)))


def licence(package: Distribution) -> str:
    """The SPDX expression, or what older packages have instead: a classifier, or the first line of a text."""
    if expression := package.metadata["License-Expression"]:
        return expression
    classifiers = package.metadata.get_all("Classifier") or []
    found = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License :: ")]
    return ", ".join(found) or (package.metadata["License"] or "").strip().partition("\n")[0]


def main() -> int:
    unknown, absent = [], []
    for name in locked():
        try:
            package = distribution(name)
        except PackageNotFoundError:  # for another platform or Python
            absent.append(name)
            continue
        found = licence(package)
        print(f"{name:<28} {package.version:<14} {found or 'not stated'}")
        unknown += [] if found else [name]
    print(f"not installed here: {', '.join(absent) or 'none'}")
    if unknown:
        print(f"no licence stated: {', '.join(unknown)}", file=sys.stderr)
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
