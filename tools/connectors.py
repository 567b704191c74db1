"""Write into docs/kafka.md which Kafka connector belongs to which PySpark, as Maven answers.

pip may have a Spark for which Maven has no connector yet. So Maven is asked for the connector of
each PySpark that docs/compatibility.md says was tried, and where there is none for the releases before
it. `make connectors` runs it; it needs `mvn` and its network.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "kafka.md"
TRIED = ROOT / "docs" / "compatibility.md"

ARTIFACT = "org.apache.spark:spark-sql-kafka-0-10_2.13"
BEGIN, END = "<!-- made by `make connectors` -->", "<!-- end -->"
SECONDS_MAX = 300

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tools</groupId><artifactId>connectors</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
  </dependencies>
</project>
"""

MISSING = re.compile(r"Could not find artifact|was not found in")
"""What Maven says of an artifact that is not there, and of nothing else."""

Release = tuple[int, int, int]


def tried_releases(page: str) -> list[Release]:
    """Return the releases of PySpark in which streams were tried, the newest first."""
    lines = [line for line in page.splitlines() if line.startswith("| `python")]
    tried = [line for line in lines if "stream read" in line.partition("Refused")[0]]
    found = {tuple(map(int, m)) for m in re.findall(r"PySpark (\d+)\.(\d+)\.(\d+)", str(tried))}
    return sorted(found, reverse=True)  # type: ignore[arg-type]


def before(release: Release, known: Sequence[Release]) -> Iterator[Release]:
    """Yield a release, those of its line before it, and then the same of the lines before."""
    major, minor, patch = release
    yield from ((major, minor, number) for number in range(patch, -1, -1))
    for other in known:
        if other[:2] < release[:2]:
            yield from ((*other[:2], number) for number in range(other[2], -1, -1))


def connectors(
    releases: Sequence[Release], is_there: Callable[[Release], bool]
) -> dict[Release, Release | None]:
    """Return the connector of each release: its own, else the newest before it that is there."""
    return {each: next(filter(is_there, before(each, releases)), None) for each in releases}


@cache
def is_in_maven(release: Release) -> bool:
    """Ask Maven whether the connector of a release is there."""
    version = text_of(release)
    group, artifact = ARTIFACT.split(":")
    with tempfile.TemporaryDirectory() as folder:
        pom = POM.format(group=group, artifact=artifact, version=version)
        Path(folder, "pom.xml").write_text(pom)
        done = subprocess.run(
            # What was not there once is asked for anew.
            ["mvn", "--batch-mode", "--update-snapshots", "dependency:resolve"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    if done.returncode and not MISSING.search(done.stdout):
        sys.exit(f"mvn could not be asked for {ARTIFACT}:{version}:\n{done.stdout[-2000:]}")
    return done.returncode == 0


def text_of(release: Release) -> str:
    """Return a release as it is written."""
    return ".".join(map(str, release))


def table(found: dict[Release, Release | None]) -> str:
    """Return the table of the page."""
    lines = ["| PySpark | connector | |", "|---|---|---|"]
    for release, connector in found.items():
        if connector is None:
            lines.append(f"| {text_of(release)} | none | there is none, nor one before it |")
            continue
        own = "its own" if connector == release else "it has none of its own; the newest before it"
        lines.append(f"| {text_of(release)} | `{ARTIFACT}:{text_of(connector)}` | {own} |")
    return "\n".join(lines)


def with_table(page: str, made: str) -> str:
    """Return the page with another table."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{made}\n\n{END}{tail}"


def main() -> None:
    """Ask, and write the page."""
    found = connectors(tried_releases(TRIED.read_text(encoding="utf-8")), is_in_maven)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_table(page, table(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
