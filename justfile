# `just` lists these. They use the environment that is active.

_default:
    @just --list

# style, types and layers, as CI checks them
check:
    ruff check
    ruff format --check
    mypy
    lint-imports

# the fast tests
test *args:
    pytest {{args}}

# the tests that take more than a few seconds
slow *args:
    pytest -m slow {{args}}

# rewrite the code in the house style
fmt:
    ruff check --fix
    ruff format

# all of CI, in environments of its own
ci:
    .ci/run

# measure; each script says what it writes to docs/benchmarks.md
bench name *args:
    python -m benchmarks.{{name}} {{args}}

# the documentation site, at http://127.0.0.1:8000
docs:
    mkdocs serve

# write anew what the documentation takes from the code
reference:
    python -m tools.reference --write
    python -m tools.defaults --write
    python -m tools.tree --write
    python -m tools.house --write
