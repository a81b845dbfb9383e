#!/usr/bin/env bash
# Fetches what checks the Kubernetes manifests, once: the schemas of all kinds, as a Python package, into
# target/. Without Python or a registry the manifests stay unchecked, and that is said.
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=target/kubernetes-validate
[ -x "$venv/bin/kubernetes-validate" ] && exit 0
if ! { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet 'kubernetes-validate==1.37.*'; } >/dev/null 2>&1; then
    rm -rf "$venv"
    echo "NOT CHECKED: Kubernetes manifests; for that python3 with venv and pip must reach a registry" >&2
fi
