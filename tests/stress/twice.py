"""Several processes on one run folder: one of them runs, the others are rejected and change nothing."""

import random
import time
from pathlib import Path

from tests.stress.command import call, start, text
from tests.stress.commands import RUN, undisturbed
from tests.stress.folders import check_same
from tests.stress.trial import Facts, Trial

REFUSED = ("is in use by another process", "has just been finished by another process")


def trials(shared: Path, short: bool) -> list[Trial]:
    """Return trials with a second process while the first runs, and with three that start at the same time."""

    def second(folder: Path, rng: random.Random) -> Facts:
        out, rejected = folder / "runs", 0
        first = start(RUN.argv(out), folder)
        (folder / "second").mkdir()
        while first.poll() is None:
            if (out / "metrics.jsonl").exists() and not (out / "summary.json").exists():
                outcome = call(RUN.argv(out), folder / "second", real=False).check(0, 2)
                if outcome.status:
                    assert any(why in outcome.err for why in REFUSED), outcome.err
                    rejected += 1
            time.sleep(rng.uniform(0, 0.2))
        assert first.returncode == 0, text(folder / "err")
        assert rejected, "a second process must have come while the first was at it"
        check_same(out, undisturbed(RUN, shared))
        return {"rejected": rejected}

    def crowd(folder: Path, _: random.Random) -> Facts:
        places = [folder / str(number) for number in range(3)]
        for place in places:
            place.mkdir()
        processes = [start(RUN.argv(folder / "runs"), place) for place in places]
        statuses = [process.wait(100) for process in processes]
        assert statuses.count(0) >= 1, f"one must have ended, got {statuses}"
        for place, status in zip(places, statuses, strict=True):
            said = text(place / "err")
            assert status == 0 or (status == 2 and any(why in said for why in REFUSED)), f"status {status}: {said}"
        check_same(folder / "runs", undisturbed(RUN, shared))
        return {"rejected": statuses.count(2)}

    made = [Trial("two processes", f"second {number}", second) for number in range(1 if short else 3)]
    return made + [Trial("two processes", f"at once {number}", crowd) for number in range(0 if short else 3)]
