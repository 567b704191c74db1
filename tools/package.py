"""Build what users install: wheel, sdist, and a Maven folder for ``spark-submit --packages``.

The jar holds what the wheel holds, because a jar of Python files on ``sys.path`` is imported like a
zip. Nothing depends on the clock or on the machine: the same commit gives the same bytes.

Rejected: a second list of files for the jar. It would drift from the wheel's.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GROUP = "io.github.upsertflow"
ARTIFACT = "upsertflow"

# The date hatchling gives to the files of a wheel unless SOURCE_DATE_EPOCH says otherwise.
DEFAULT_EPOCH_SECONDS = 1_580_601_600

MANIFEST = """\
Manifest-Version: 1.0
Implementation-Title: {artifact}
Implementation-Version: {version}

"""

POM = """\
<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>{group}</groupId>
  <artifactId>{artifact}</artifactId>
  <version>{version}</version>
  <packaging>jar</packaging>
  <name>{artifact}</name>
  <description>Keyed upsert streams for Apache Spark. It holds Python files.</description>
  <licenses>
    <license>
      <name>Apache-2.0</name>
      <url>https://www.apache.org/licenses/LICENSE-2.0</url>
    </license>
  </licenses>
</project>
"""

METADATA = """\
<?xml version="1.0" encoding="UTF-8"?>
<metadata>
  <groupId>{group}</groupId>
  <artifactId>{artifact}</artifactId>
  <versioning>
    <latest>{version}</latest>
    <release>{version}</release>
    <versions>
      <version>{version}</version>
    </versions>
    <lastUpdated>{stamp}</lastUpdated>
  </versioning>
</metadata>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What one build made."""

    version: str
    wheel: Path
    sdist: Path
    jar: Path
    maven: Path

    @property
    def coordinates(self) -> str:
        """What follows ``spark-submit --packages``."""
        return f"{GROUP}:{ARTIFACT}:{self.version}"


def package(target: Path, *, source: Path = ROOT) -> Package:
    """Build everything into one folder.

    Parameters
    ----------
    target : Path
        Earlier builds in it are removed, lest another version's wheel be uploaded by mistake.
    source : Path
        The checkout.

    Notes
    -----
    The wheel is built from the sdist, which proves that the sdist is complete.
    """
    maven = target / "maven"
    shutil.rmtree(maven, ignore_errors=True)
    for old in [*target.glob(f"{ARTIFACT}-*.whl"), *target.glob(f"{ARTIFACT}-*.tar.gz")]:
        old.unlink()
    # Without isolation: hatchling is a development requirement, so that nothing is downloaded.
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (wheel,) = target.glob("*.whl")
    (sdist,) = target.glob("*.tar.gz")
    version = wheel.name.split("-")[1]

    home = maven.joinpath(*GROUP.split("."), ARTIFACT)
    folder = home / version
    folder.mkdir(parents=True)
    jar = folder / f"{ARTIFACT}-{version}.jar"
    write_jar(jar, wheel=wheel, version=version)
    names = {"group": GROUP, "artifact": ARTIFACT, "version": version}
    (folder / f"{ARTIFACT}-{version}.pom").write_text(POM.format(**names))
    stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(epoch_seconds()))
    (home / "maven-metadata.xml").write_text(METADATA.format(**names, stamp=stamp))
    for file in [path for path in home.rglob("*") if path.is_file()]:
        write_checksums(file)
    return Package(version=version, wheel=wheel, sdist=sdist, jar=jar, maven=maven)


def epoch_seconds() -> int:
    """The one date in everything we build."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", DEFAULT_EPOCH_SECONDS))


def write_jar(jar: Path, *, wheel: Path, version: str) -> None:
    """Write the wheel's files, after the manifest that Java wants first."""
    date = time.gmtime(epoch_seconds())[:6]
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(jar, "w") as target:
        manifest = MANIFEST.format(artifact=ARTIFACT, version=version).encode()
        files = [("META-INF/MANIFEST.MF", manifest)]
        files += [(name, source.read(name)) for name in sorted(source.namelist())]
        for name, content in files:
            entry = zipfile.ZipInfo(name, date_time=date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            target.writestr(entry, content)


def write_checksums(file: Path) -> None:
    """Write the two digests a Maven repository keeps beside each file."""
    for algorithm in ("md5", "sha1"):
        digest = hashlib.new(algorithm, file.read_bytes(), usedforsecurity=False).hexdigest()
        file.with_name(f"{file.name}.{algorithm}").write_text(digest)


def main() -> None:
    """Build into ``dist`` and say how to use the result."""
    parser = argparse.ArgumentParser(description="Build wheel, sdist, jar and Maven folder.")
    parser.add_argument("--target", type=Path, default=ROOT / "dist", help="default: dist")
    built = package(parser.parse_args().target)
    print(f"wheel  {built.wheel}\nsdist  {built.sdist}\njar    {built.jar}\n")
    print(
        f"spark-submit --packages {built.coordinates} --repositories {built.maven.as_uri()} app.py"
    )


if __name__ == "__main__":
    main()
