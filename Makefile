# Every target uses the tools of the active environment: pip install -e '.[dev]'
PYTHON ?= python
HERE := not gpu and not network
BENCHMARKS = $(subst /,.,$(basename $(patsubst %/__main__.py,%.py,$(patsubst benchmarks/%,%,$(filter-out benchmarks/memory_of_loss.py,$(shell grep -l "^if __name__" benchmarks/*.py benchmarks/*/__main__.py))))))

.DEFAULT_GOAL := help
.PHONY: help check format lint types contracts test faults bench docs reference dist sbom licenses lowest

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

check: lint types contracts test ## everything a change must pass

format: ## rewrite the code as ruff formats it
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

lint: ## whether the code is formatted, and what ruff finds in it
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types: ## mypy, strict
	$(PYTHON) -m mypy

contracts: ## who may import whom
	lint-imports

test: ## the default suite
	$(PYTHON) -m pytest

FAULTS = tests/faults tests/end_to_end/test_elastic_resume.py tests/end_to_end/test_shortages_on_ranks.py \
	tests/integration/test_model_folder.py

faults: ## crashes, full disks, damaged files, signals, shortages and other ranks, the slow ones too
	$(PYTHON) -m pytest $(FAULTS) -m "$(HERE)"

reference: ## write the parts of docs/ that are made from the code
	PYTHONPATH=. $(PYTHON) scripts/reference_pages.py

docs: ## the documentation as a site in build/site; python -m http.server -d build/site serves it with its search
	PYTHONPATH=. $(PYTHON) scripts/site_pages.py build/pages
	$(PYTHON) -m zensical build --strict --clean

dist: ## the source distribution and the wheel, in dist/
	$(PYTHON) -m build

sbom: ## the packages of this environment as build/sbom.json, in the format CycloneDX; ARGS='--extra s3' adds an extra
	$(PYTHON) scripts/list_dependencies.py sbom --output build/sbom.json $(ARGS)

licenses: ## the licenses in docs/dependencies.md, of the installed packages
	$(PYTHON) scripts/list_dependencies.py licenses --output docs/dependencies.md

lowest: ## the default suite with the lowest versions that pyproject.toml allows; ARGS=--quick runs a part of it
	$(PYTHON) scripts/check_lowest_versions.py check $(ARGS)

bench: ## measure what docs/benchmarks.md says; ARGS=--write puts it there
	@for name in $(BENCHMARKS); do $(PYTHON) -m benchmarks.$$name $(ARGS) || exit 1; done
