#!/bin/sh
# Review the commits of a branch, and fail if the review finds a blocker.
#
#   examples/ci/review.sh [BASE]      BASE is the branch to merge into, by default origin/main
#
# Needs a provider key in the environment, such as ANTHROPIC_API_KEY. Writes review.json, review.md and
# review.xml (JUnit). Exits with 0 if the branch can be merged or the service is busy, with 1 if
# there are blockers, and else with the code of amplifier.
set -u
here=$(cd "$(dirname "$0")" && pwd)
base=${1:-origin/main}
export CHECK_REVIEW="$here/check_review.py"

code=0
git diff "$base...HEAD" | amplifier run \
    --tools read_file,grep,glob --approve deny \
    --max-cost 1 --max-steps 30 --timeout 10m \
    --schema "$here/review.schema.json" \
    --check 'python3 "$CHECK_REVIEW" "$AMPLIFIER_ANSWER_FILE"' \
    --report junit=review.xml --report md=review.md \
    --no-save --no-project \
    "Review this diff. Report only what you have verified in the files." - \
    >review.json || code=$?

case $code in
0) ;;
75) echo "review skipped: the service is busy" >&2 && exit 0 ;;
4 | 78) echo "review failed: set the provider's key in the CI settings" >&2 && exit $code ;;
7) echo "review failed: the limit on cost, steps or time was reached" >&2 && exit $code ;;
9) echo "review failed: it names lines that do not exist, see review.md" >&2 && exit $code ;;
*) echo "review failed with exit code $code" >&2 && exit $code ;;
esac

if grep -Eq '"severity": *"blocker"' review.json; then
    echo "the review found blockers, see review.md" >&2
    exit 1
fi
