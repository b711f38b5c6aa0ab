#!/bin/bash
# Both guests run this: host A serves a pool and does what host B asks for, host B runs the tests. docs/lab.md says how.
# Arguments go to pytest.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LAB_PORT=7799
case ${LAB_NAME:-} in
A) exec python -m tests.two_hosts.host_a ;;
B) ;;
*) echo "run.sh needs two guests: farpool-lab run --hosts 2 --rdma --cxl 512M -- bash tests/two_hosts/run.sh" >&2; exit 2 ;;
esac
python -m pytest -p no:cacheprovider -p no:xdist -p no:pytest_cov -p no:hypothesispytest -o timeout=900 -ra tests/two_hosts "$@"
code=$?
# Host A ends with the connection of the tests: it must have had one, should they have ended before that.
((code == 0)) || timeout 10 bash -c ": >'/dev/tcp/$LAB_PEER_IP/$LAB_PORT'" 2>/dev/null
exit "$code"
