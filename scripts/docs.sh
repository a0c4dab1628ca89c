#!/usr/bin/env bash
# Build the documentation as a site in build/site, and serve it on this machine.
# usage: scripts/docs.sh [--build]   (--build: only build; fails on a broken link)
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -x build/docs-venv/bin/mkdocs ]; then
  "${PYTHON:-python3}" -m venv build/docs-venv
  build/docs-venv/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.5,<10'
fi
# The README is the first page; its links into docs/, and those of docs/ out of it, become the site's.
pages=build/pages
rm -rf "$pages" && mkdir -p "$pages"
cp -r docs/. "$pages"
sed -E 's#\(docs/#(#g; s#\((CONTRIBUTING|CHANGELOG)\.md#(about/\1.md#g; s#\(LICENSE\)#(about/LICENSE.md)#g' README.md > "$pages/index.md"
mkdir "$pages/about"
cp CONTRIBUTING.md CHANGELOG.md "$pages/about"
cp LICENSE "$pages/about/LICENSE.md"
sed -i -E 's#\(docs/#(../#g' "$pages"/about/*.md
sed -i -E 's#\.\./README\.md#index.md#g; s#\.\./CONTRIBUTING\.md#about/CONTRIBUTING.md#g' "$pages"/*.md
sed 's#^docs_dir: docs#docs_dir: build/pages#' mkdocs.yml > .mkdocs.yml
trap 'rm -f .mkdocs.yml' EXIT
if [ "${1:-}" = --build ]; then
  NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --strict --quiet --config-file .mkdocs.yml
else
  NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs serve --config-file .mkdocs.yml
fi
