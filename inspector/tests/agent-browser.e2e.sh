#!/bin/sh
# The least that must work, against any server: open the Inspector, start a session, send a message, see the answer.
#
# usage: inspector/tests/agent-browser.e2e.sh URL
#
# URL is what `sandbox-agent ui --print` prints, with the token in its fragment. The agent is $AGENT (mock unless set),
# the session's directory $DIRECTORY (/tmp unless set). Needs `agent-browser`: $AGENT_BROWSER, or the one on the PATH.
set -eu

url=${1:?usage: $0 URL}
agent=${AGENT:-mock}
directory=${DIRECTORY:-/tmp}
message="hello $$"
browse() { "${AGENT_BROWSER:-agent-browser}" --session "e2e-$$" "$@"; }
trap 'browse close >/dev/null 2>&1 || true' EXIT

base=${url%%#*}
case $url in
  *#*) fragment="#${url#*#}" ;;
  *) fragment="" ;;
esac

echo "open ${base}"
browse open "${base%/}/new?agent=${agent}${fragment}" >/dev/null
browse wait --text "First message" >/dev/null

echo "spawn ${agent}"
browse find label "Directory" fill "$directory" >/dev/null
browse find role button click --name "Start" --exact >/dev/null
browse wait --url "**/sessions/**" >/dev/null

echo "message ${message}"
browse wait "textarea" >/dev/null
browse fill "textarea" "$message" >/dev/null
browse press Enter >/dev/null

echo "response"
browse wait ".item-text" >/dev/null
browse wait --fn "!document.querySelector('.turn-end [role=status]')" >/dev/null
browse get text ".item-text"
echo "ok"
