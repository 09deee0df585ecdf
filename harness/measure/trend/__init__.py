"""Speed over commits: runs of `nox -s bench` kept per machine, compared only with runs of the same machine."""
