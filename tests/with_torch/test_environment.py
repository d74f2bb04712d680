"""Environments: right on every torch, quick, and the same before and after a compile."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config
import torch.compiler.config

from pytest_compilecontract.facts.receipt import Environment, environment_key, fingerprint
from pytest_compilecontract.files.receipt import environment_from_data
from pytest_compilecontract.measure.environment import current_environment

pytestmark = pytest.mark.torch

# Not all of a config module is typed.
DYNAMO: Any = torch._dynamo.config
COMPILER: Any = torch.compiler.config
ROOT = Path(__file__).parent.parent.parent
QUIET = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
MEASURE = """
import json, sys
from pathlib import Path
from pytest_compilecontract.measure.environment import current_environment
from pytest_compilecontract.files.receipt import environment_to_data
{before}
print(json.dumps(environment_to_data(current_environment(Path(sys.argv[1])))))
"""


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is in no git repository."""
    return tmp_path_factory.mktemp("project")


def settings_of(project: Path) -> dict[str, str]:
    settings = current_environment(project).settings
    assert settings is not None
    return settings


def elsewhere(project: Path, *, before: str = "", **variables: str) -> Environment:
    """The environment as a fresh process finds it, after the line `before`."""
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE.format(before=before), str(project)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return environment_from_data(json.loads(ran.stdout))


@pytest.fixture(scope="module")
def elsewhere_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def fresh(elsewhere_project: Path) -> Environment:
    """The environment of a process in which nothing was compiled."""
    return elsewhere(elsewhere_project, **QUIET, PYTHONHASHSEED="1")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    ran = subprocess.run(["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_names_what_it_runs_on(project: Path) -> None:
    env = current_environment(project)

    assert env.torch == torch.__version__
    assert type(env.torch) is str
    assert env.cuda == torch.version.cuda
    assert env.python == platform.python_version()
    assert env.pytest == pytest.__version__
    assert env.platform == platform.platform()
    assert env.processor
    assert env.device_count == torch.cuda.device_count()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_device_is_the_processor_and_cuda_stays_asleep(project: Path) -> None:
    env = current_environment(project)

    assert env.device == env.processor
    assert (env.capability, env.cudnn, env.nccl, env.driver) == (None, None, None, None)
    assert environment_key(env) == f"torch{torch.__version__.rpartition('.')[0]}-cpu"
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_with_cuda_the_device_and_its_libraries_are_named(project: Path) -> None:
    env = current_environment(project)

    major, minor = torch.cuda.get_device_capability()
    assert env.device == torch.cuda.get_device_name()
    assert env.capability == f"{major}.{minor}"
    assert env.cudnn is not None
    assert env.cudnn.count(".") == 2
    assert env.nccl is not None
    assert env.driver is not None
    assert environment_key(env).endswith(f"-cuda-sm{major}{minor}")


def test_it_is_quick(project: Path) -> None:
    current_environment(project)

    start = time.process_time()
    current_environment(project)

    assert time.process_time() - start < 0.1


# torch's settings


def test_a_fresh_torch_differs_in_nothing(fresh: Environment) -> None:
    assert fresh.settings == {}


def test_each_module_s_changed_settings_are_named_in_full(project: Path) -> None:
    with (
        torch._dynamo.config.patch(recompile_limit=3),
        torch._inductor.config.patch({"triton.cudagraphs": not torch._inductor.config.triton.cudagraphs}),
        torch._functorch.config.patch(activation_memory_budget=0.5),
        COMPILER.patch(force_disable_caches=True),
    ):
        settings = settings_of(project)

    assert settings == {
        "torch._dynamo.config.recompile_limit": "3",
        "torch._functorch.config.activation_memory_budget": "0.5",
        "torch._inductor.config.triton.cudagraphs": "True",
        "torch.compiler.config.force_disable_caches": "True",
    }


def test_an_alias_shows_as_the_setting_that_it_stands_for(project: Path) -> None:
    with torch._dynamo.config.patch(cache_size_limit=3), torch._inductor.config.patch(force_disable_caches=True):
        settings = settings_of(project)

    assert settings == {
        "torch._dynamo.config.recompile_limit": "3",
        "torch.compiler.config.force_disable_caches": "True",
    }


def test_a_setting_that_a_patch_put_back_is_the_default_again(project: Path) -> None:
    with torch._dynamo.config.patch(recompile_limit=3, verbose=True):
        pass

    assert settings_of(project) == {}


def test_a_default_that_was_set_by_hand_is_still_the_default(project: Path) -> None:
    with torch._dynamo.config.patch(recompile_limit=torch._dynamo.config.recompile_limit):
        assert settings_of(project) == {}


def test_a_setting_changed_in_place_is_seen(project: Path) -> None:
    name = next(
        name for name, entry in sorted(DYNAMO._config.items()) if isinstance(entry.default, set) and entry.alias is None
    )
    changed = getattr(torch._dynamo.config, name)
    added = ["tmp_b", "tmp_a"]
    changed.update(added)
    try:
        settings = settings_of(project)
    finally:
        changed.difference_update(added)

    assert list(settings) == [f"torch._dynamo.config.{name}"]
    # In order, whatever the order that this process keeps a set in.
    shown = settings[f"torch._dynamo.config.{name}"]
    assert shown.index("tmp_a") < shown.index("tmp_b")


def test_a_setting_that_another_implies_is_seen(project: Path) -> None:
    if not getattr(torch._inductor.config, "_implications", None):
        pytest.skip("no setting implies another before torch 2.15")
    with torch._inductor.config.patch(numerics="strict"):
        settings = settings_of(project)

    assert settings["torch._inductor.config.numerics"] == "'strict'"
    assert settings["torch._inductor.config.emulate_precision_casts"] == "True"


def test_reading_uses_up_no_deprecation_warning(project: Path) -> None:
    entry: Any = DYNAMO._config["inline_inbuilt_nn_modules"]
    if not getattr(entry, "deprecated", False):
        pytest.skip("torch 2.11 has no deprecated settings")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch._dynamo.config.patch(inline_inbuilt_nn_modules=not entry.default):
            entry._deprecation_warned = False
            settings = settings_of(project)

            with pytest.warns(FutureWarning, match="inline_inbuilt_nn_modules is deprecated"):
                _ = torch._dynamo.config.inline_inbuilt_nn_modules

    assert settings == {"torch._dynamo.config.inline_inbuilt_nn_modules": str(not entry.default)}


def test_a_function_in_a_setting_has_no_address(project: Path) -> None:
    def passes(graph: object) -> None:
        del graph

    with torch._inductor.config.patch(post_grad_custom_post_pass=passes):
        settings = settings_of(project)

    name = f"{test_a_function_in_a_setting_has_no_address.__name__}.<locals>.passes"
    assert settings == {"torch._inductor.config.post_grad_custom_post_pass": f"<function {name}>"}


def test_a_long_setting_is_cut(project: Path) -> None:
    with torch._inductor.config.patch(post_grad_fusion_options={"a" * 50: {"b" * 400: 1}}):
        settings = settings_of(project)

    assert [len(value) for value in settings.values()] == [200]


# Variables and folders


def test_torch_s_variables_are_kept_and_others_are_not(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("TORCH", "TRITON", "CUDA", "PYTORCH", "OMP_"))]:
        monkeypatch.delenv(name)
    kept = {"OMP_NUM_THREADS": "2", "PYTORCH_ALLOC_CONF": "a:b", "TORCH_LOGS": "recompiles", "TRITON_DEBUG": "0"}
    for name, value in {**kept, "SECRET": "x", "OMP_OTHER": "y", "TORCHINDUCTOR_CACHE_DIR": "z"}.items():
        monkeypatch.setenv(name, value)

    env = current_environment(project)

    assert env.variables == kept


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("/srv/people/al/project/cache", "<root>/cache"),
        ("/srv/people/al/x:/scratch/y", "<home>/x:<tmp>/y"),
        ("/srv/people/al", "<home>"),
        ("/srv/people/alice/x /srv/people/al.old", "/srv/people/alice/x /srv/people/al.old"),
        ("/var/scratch/x", "/var/scratch/x"),
        ("-I/srv/people/al/include", "-I<home>/include"),
        ("a\x1b[31m\n", r"a\x1b[31m\n"),
    ],
    ids=["root", "several", "alone", "another's home", "inside a path", "after an option", "an escape sequence"],
)
def test_this_machine_s_folders_are_not_shown(value: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/people/al")
    monkeypatch.setattr(tempfile, "tempdir", "/scratch")
    monkeypatch.setenv("TORCH_TEST", value)

    env = current_environment(Path("/srv/people/al/project"))

    assert env.variables["TORCH_TEST"] == shown


def test_a_home_that_is_the_root_of_all_folders_hides_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv("TORCH_TEST", "/opt/x")

    env = current_environment(project)

    assert env.variables["TORCH_TEST"] == "/opt/x"


# git


def test_where_there_is_no_git_there_is_no_commit(project: Path) -> None:
    env = current_environment(project)

    assert (env.commit, env.dirty) == (None, None)


def test_a_commit_and_whether_files_differ_from_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(project, "init", "-q")
    empty = current_environment(project)
    (project / "model.py").write_text("a = 1\n")
    git(project, "add", "model.py")
    git(project, "commit", "-qm", "first")
    (project / "untracked.py").write_text("")
    clean = current_environment(project)
    (project / "model.py").write_text("a = 2\n")
    with monkeypatch.context() as hook:
        # As in a git hook, which speaks of another repository.
        hook.setenv("GIT_DIR", str(project / "nowhere"))
        dirty = current_environment(project)

    commit = git(project, "rev-parse", "HEAD")
    assert (empty.commit, empty.dirty) == (None, None)
    assert (clean.commit, clean.dirty) == (commit, False)
    assert (dirty.commit, dirty.dirty) == (commit, True)


# What must not matter


def test_two_processes_and_a_compile_make_no_difference(elsewhere_project: Path, fresh: Environment) -> None:
    compiled = "import torch; torch.compile(lambda x: x.sin() + 1)(torch.ones(4))"

    used = elsewhere(elsewhere_project, before=compiled, **{**QUIET, "PYTHONHASHSEED": "2"})

    assert used == fresh
    assert fingerprint(used) == fingerprint(fresh)


def test_nothing_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr("importlib.metadata.version", broken)
    monkeypatch.setattr(torch.cuda, "is_available", broken)
    monkeypatch.setattr(torch.cuda, "device_count", broken)
    monkeypatch.setattr(platform, "platform", broken)
    monkeypatch.setattr(subprocess, "run", broken)
    monkeypatch.setattr(tempfile, "gettempdir", broken)
    monkeypatch.setattr(Path, "read_text", broken)
    monkeypatch.setattr(torch._dynamo.config.__class__, "_is_default", broken, raising=False)

    env = current_environment(tmp_path / "none")

    assert (env.pytest, env.plugin, env.triton, env.libraries) == (None, None, None, {})
    assert (env.commit, env.platform, env.device_count, env.settings) == (None, None, None, None)
    assert env.torch == torch.__version__
