"""Commands that documents, recipes and scripts show are commands that there are.

What there is is docs/cli.md, which another test compares with the commands themselves.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OF_EVERY_COMMAND = {"--json", "--debug", "--help"}


def known_commands() -> dict[str, set[str]]:
    """Each command with its options."""
    sections = (ROOT / "docs" / "cli.md").read_text().split("\n## o41td ")[1:]
    return {part.split("\n")[0]: set(re.findall(r"`(--[\w-]+)`", part)) | OF_EVERY_COMMAND for part in sections}


def commands_in(text: str) -> Iterator[list[str]]:
    """The words of every call of o41td in shell blocks."""
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", text, flags=re.DOTALL):
        for line in block.replace("\\\n", " ").split("\n"):
            words = shlex.split(line, comments=True)
            if words and Path(words[0]).name == "o41td":
                yield words[1:]


def refuse_unknown(words: list[str]) -> None:
    """Fails where a command, or an option of it, is not there."""
    known = known_commands()
    command = next(word for word in words if not word.startswith("-"))
    assert command in known
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known[command]
    assert not unknown, f"o41td {command} has no {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("page", [page for page in PAGES if any(commands_in(page.read_text()))], ids=lambda p: p.name)
def test_commands_of_a_page_are_there(page: Path) -> None:
    """Each `o41td …` in a shell block names a command, and options that it has."""
    for words in commands_in(page.read_text()):
        refuse_unknown(words)


def test_the_kubernetes_job_serves_to_its_trainer() -> None:
    """The loader is a sidecar that calls a command that there is; it and the trainer share user, /tmp and processes."""
    pod = yaml.safe_load((ROOT / "deploy" / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]
    (loader,) = (container for container in pod["initContainers"] if container["name"] == "loader")
    (trainer,) = pod["containers"]
    refuse_unknown(loader["args"])
    probe = loader["startupProbe"]["exec"]["command"]  # without it the trainer may connect before a loader is served
    assert probe == ["o41td", "status", loader["args"][loader["args"].index("--name") + 1]]
    refuse_unknown(probe[1:])
    assert loader["restartPolicy"] == "Always"  # what makes it a sidecar
    assert pod["shareProcessNamespace"] is True
    assert pod["securityContext"]["runAsUser"] == 1000
    for container in (loader, trainer):
        assert {"/tmp", "/dev/shm"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    mounted = {mount["name"] for part in (loader, trainer) for mount in part["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("version", ["1.29", None])  # the first with sidecars unasked for, and the newest known
def test_the_kubernetes_job_fits_the_schema_of_the_api(version: str | None) -> None:
    """Each key is one that Kubernetes knows at that place, and each value of its kind."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    document = yaml.safe_load((ROOT / "deploy" / "kubernetes.yaml").read_text())
    kubernetes_validate.validate(document, version or kubernetes_validate.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_service_is_one_that_systemd_takes(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say of the unit, for a program that is there."""
    unit = (ROOT / "deploy" / "o41td@.service").read_text()
    (tmp_path / "o41td@.service").write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit, flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "--user", "--man=no", "verify", "./o41td@pretrain.service"],
        cwd=tmp_path, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_service_calls_a_command_that_there_is() -> None:
    """The unit's ExecStart is `o41td serve` with options that it has."""
    unit = (ROOT / "deploy" / "o41td@.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, flags=re.MULTILINE)
    program, *words = shlex.split(line)
    assert program.endswith("/o41td")
    assert words[0] == "serve"
    refuse_unknown(words)
