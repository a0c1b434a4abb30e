"""The section of `bucket_questions`: its kept results as tables, and what they answer, in words. A
row needs all its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean, median
from typing import Any

from benchmarks import page
from benchmarks.kept import span
from benchmarks.quality import bucket_ppo, bucket_questions
from benchmarks.quality.bucket_questions import MET, MIXES, SEEDS, SOCIAL, UNMET, upstream
from benchmarks.stats import columns, half, over_seeds
from orchestry.engine.neural import LEARNED

Found = Mapping[str, Any]
"""Results by part."""
Row = dict[str, str]


def report(found: Found) -> str:
    """The section."""
    left = Counter(one.question for one in bucket_questions.parts() if str(one) not in found)
    parts = ", ".join(f"{count} of {question}" for question, count in left.items())
    missing = f"\n\nParts that are not played yet (`--list` names them): {parts}." if left else ""
    lines = bucket_ppo.known(bucket_questions.STEPS["runs"])
    ppo = {
        name: [line for (own, _), line in sorted(lines.items()) if own == name] for name, _ in lines
    }
    answers = (bred(found, ppo), moved(found, ppo), met(found), equilibria(found, ppo))
    return "\n\n".join([f"{INTRO} {span(bucket_questions.fitting())}", *answers]) + missing


INTRO = (
    f"Returns are sums over a game's nights, the mean per agent, over {bucket_questions.GAMES} "
    "games that nobody has learned in. ± is half a 95 % interval: over seeds (Student's t), or "
    f"over games where a row says so. `PPO` is {page.link('bucket_ppo', 'the table above')}'s "
    "team of four. Upstream's figures are of `rjwalters/bucket-brigade` at revision "
    f"{upstream()['commit'][:8]}; `benchmarks/quality/bucket_upstream.json` has the path of each.\n"
    "\nUpstream's Rust plays a scripted agent by four of its ten numbers: it works with a fixed "
    "chance, at its burning home or at any fire. `-4` marks agents that are played so here; the "
    "others are played as upstream's Python does."
)


KINDS = {"mix": "partners of four kinds", "self": "earlier versions of itself"}
PROTOTYPE = 11.1
"""Of a team per night, before this package was written."""


def block(title: str, text: str, rows: Sequence[Row], answer: str = "") -> str:
    """A question's part of the section; the answer is said of what the table has."""
    if not rows:
        return f"### {title}\n\n{text}\n\nNothing complete yet."
    said = f"\n\n**Answer.** {answer}" if answer else ""
    return f"### {title}\n\n{text}\n\n{columns(rows, figures=False)}{said}"


def sign(differences: Sequence[float]) -> int:
    """1 or -1 if the interval over seeds lies above or below 0, else 0; 0 of one seed."""
    if len(differences) < 2 or abs(fmean(differences)) <= half(differences):
        return 0
    return 1 if fmean(differences) > 0 else -1


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return ", ".join(names) or "none"


def seeds(found: Found, question: str, scenario: str, kind: str) -> list[Any]:
    """The results of all seeds, or none."""
    names = [str(bucket_questions.Part(question, scenario, kind, n)) for n in range(SEEDS)]
    return [found[one] for one in names] if all(one in found for one in names) else []


def single(found: Found, question: str, kind: str = "") -> Iterator[tuple[str, Any]]:
    """The results of a question's parts that have one seed, by scenario."""
    for part in bucket_questions.parts():
        if part.question == question and part.kind == kind and str(part) in found:
            yield part.scenario, found[str(part)]


def within(figures: Sequence[float]) -> str:
    """Mean and half an interval over games."""
    return f"{figures[0]:.0f} ± {figures[1]:.0f}"


def learned(lines: Sequence[Any] | None) -> str:
    """What bucket_ppo's team earns."""
    return over_seeds([one["returns"][LEARNED] for one in lines], ".0f") if lines else ""


def scripted(lines: Sequence[Any] | None, name: str) -> str:
    """What a scripted team earns in the same games."""
    return over_seeds([one["returns"][name] for one in lines], ".0f") if lines else ""


# --- 1. evolved agents ----------------------------------------------------------------------------


def bred(found: Found, ppo: Mapping[str, Sequence[Any]]) -> str:
    """Evolved agents beside PPO."""
    rows = list[Row]()
    for name, result in single(found, "evolved"):
        lines, cells = ppo.get(name), result["cells"]
        rows.append(
            {"scenario": name, "PPO": learned(lines)}
            | {kind: scripted(lines, kind) for kind in ("guard", "firefighter", "free_rider")}
            | {kind: over_seeds(means, ".0f") for kind, means in result["teams"].items()}
            | {
                f"one {one} among {other}": within(cells[f"{one} {other}"])
                for version in upstream()["evolved"]
                for one, other in (("PPO", f"{version}-4"), (f"{version}-4", "PPO"))
            }
        )
    text = (
        "Teams of four of a kind. `v6` and `v7` are the agents that upstream evolved for each "
        "scenario: v6 for its own team's return, v7 beside archetypes; both under upstream's rules "
        "of November 2025, whose rewards and endings differ from today's. The last four columns: "
        f"the return of one agent in one seat, by turns in each, ± over {bucket_questions.DEALS} "
        "games; there PPO is seed 0."
    )
    return block("Baselines and evolved agents", text, rows, ahead(found, ppo))


def ahead(found: Found, ppo: Mapping[str, Sequence[Any]]) -> str:
    """Where PPO's team earns more than the best evolved one."""
    by_sign: dict[int, list[str]] = {1: [], 0: [], -1: []}
    for name, result in single(found, "evolved"):
        if name in ppo:
            best = max(result["teams"].values(), key=fmean)
            gains = [a["returns"][LEARNED] - b for a, b in zip(ppo[name], best, strict=False)]
            by_sign[sign(gains)].append(name)
    return (
        "PPO's team beside the best evolved team of the row, each seed in the same games: it earns "
        f"more, by the interval over seeds, in {listed(by_sign[1])}; less in "
        f"{listed(by_sign[-1])}; in the others the two are not told apart, or PPO has one seed."
    )


# --- 2. generalisation ----------------------------------------------------------------------------


def moved(found: Found, ppo: Mapping[str, Sequence[Any]]) -> str:
    """The matrix of transfer."""
    own = {name: result for name, result in single(found, "transfer") if name in ppo}
    floor = {name: ppo[name][0]["returns"]["random"] for name in own}

    def share(name: str, there: str, way: str) -> float:
        at_home: float = own[there]["as it is"][there]
        return float((own[name][way][there] - floor[there]) / (at_home - floor[there]))

    rows = list[Row]()
    for name in own:
        others = [there for there in own if there != name]
        rows.append(
            {"learned in": name}
            | {there: f"{share(name, there, 'as it is'):.0%}" for there in own}
            | {
                f"others, {way}": f"{median(share(name, there, way) for there in others):.0%}"
                for way in (("as it is", "told its own") if others else ())
            }
        )
    text = (
        "Each row is a policy (seed 0), each column a scenario that it plays, always as a team of "
        "four. 100 % is what the policy that learned there earns, 0 % a random team. A policy sees "
        "the scenario's numbers, which never changed while it learned. `told its own`: the same "
        "games, but it goes on seeing the numbers of the scenario that it learned in. `others`: "
        "the median over the other scenarios, since a percent is little where the two teams "
        "differ by little."
    )
    return block("Generalisation across scenarios", text, rows, told_own(own, share))


def told_own(own: Mapping[str, Any], share: Callable[[str, str, str], float]) -> str:
    """What a policy keeps elsewhere, and what it loses by reading new numbers."""
    pairs = [(name, there) for name in own for there in own if there != name]
    if not pairs:
        return ""
    as_is, told = (
        median(share(*pair, way) for pair in pairs) for way in ("as it is", "told its own")
    )
    return (
        f"In the median over {len(pairs)} pairs a policy keeps {as_is:.0%} elsewhere, and "
        f"{told:.0%} if it goes on seeing its own scenario's numbers."
    )


# --- 3. partners ----------------------------------------------------------------------------------


def met(found: Found) -> str:
    """What diverse partners are good for."""
    rows = list[Row]()
    for name in dict.fromkeys(part.scenario for part in bucket_questions.parts()):
        for kind, partners in MIXES.items():
            if results := seeds(found, "partners", name, kind):
                unseen = [fmean(one[who] for who in UNMET) for one in results]
                rows.append(
                    {"scenario": name, "learned beside": ", ".join(partners)}
                    | {
                        f"beside {who}": over_seeds([one[who] for one in results], ".0f")
                        for who in (*MET, *UNMET)
                    }
                    | {"beside those it never met": over_seeds(unseen, ".1f")}
                )
    text = (
        "PPO learns in one seat for the team's mean return "
        f"({bucket_questions.STEPS['partners']:,} steps, {SEEDS} seeds), beside three agents of "
        "one kind, one of four kinds per seat and game, or earlier versions of itself. "
        "Then it plays beside three of each kind; the figures are the whole team's. None of the "
        "learners has met the last four kinds."
    )
    return block("Diverse partners", text, rows, diverse(found))


def diverse(found: Found) -> str:
    """What diverse partners and self-play bring beside partners that nobody met, by seed."""
    said = []
    for name in dict.fromkeys(part.scenario for part in bucket_questions.parts()):
        means = {
            kind: [fmean(one[who] for who in UNMET) for one in seeds(found, "partners", name, kind)]
            for kind in MIXES
        }
        plain = means.pop("one")
        for kind, own in means.items():
            if plain and own:
                gains = [b - a for a, b in zip(plain, own, strict=True)]
                verdict = {1: "more", 0: "not told from 0", -1: "less"}[sign(gains)]
                said.append(f"{name}, {KINDS[kind]}: {over_seeds(gains)} ({verdict})")
    return f"More than with partners of one kind, by seed: {'; '.join(said)}." if said else ""


# --- 4. Nash --------------------------------------------------------------------------------------


def equilibria(found: Found, ppo: Mapping[str, Sequence[Any]]) -> str:
    """Upstream's equilibria, learners for themselves, and deviations."""
    published = (
        "`published` is upstream's payoff per agent and game, by double oracle over scripted "
        "agents that its Rust plays by four numbers: 200 or 1,000 games per payoff, epsilon 0.01 "
        "for teams of one kind and 50 for others, not exact. What it computed before its issue 240 "
        "it withdrew, and it is left out. In its Rust a game ends when all houses are safe or all "
        f"are ruined, else after {bucket_questions.LONGEST} nights: one ruined house makes it "
        "long, and each night is paid. `same game` is our code with that ending. Upstream's Python "
        "and we end a game on the first evening without a fire (`our ending`), so neither PPO nor "
        "another column can be held against `published`. Upstream divides rest_trap's 2,984 by 12 "
        "nights and holds it against the sum of four agents; it is the mean of one agent, in games "
        "that last longer. Its game and its agents draw from two generators of one seed, so its "
        "luck is not quite ours. `they work`: on which share of nights with a fire each agent "
        "works, from the one that works most. ± over games."
    )
    alone = (
        "PPO with a policy per agent, which learns from its agent's own reward or from the team's "
        f"({bucket_questions.STEPS['reward']:,} steps, {SEEDS} seeds). `they work`: as above, "
        "mean over seeds. `gain`: what a best response earns more in the first seat than the "
        "player there. It begins as the player and learns from its own reward, in "
        f"{bucket_questions.STEPS['response']:,} steps."
    )
    one = (
        "PPO for its own reward in one seat of upstream's equilibrium, with our ending "
        f"({bucket_questions.STEPS['deviate']:,} steps, one seed, ± over games). A gain below 0: "
        "it plays that seat worse than the agent whose place it took."
    )
    night = (
        "A team's return per night, the sum of its four agents, as upstream reports what its own "
        "PPO learned; `ours` is the return above times four, divided by the mean nights of the "
        "games that ended in PPO's last batch of learning: those of the games that were measured "
        f"are not kept. A first prototype of this backend reached {PROTOTYPE} on "
        "minimal_specialization."
    )
    return "\n\n".join(
        [
            block("Nash equilibria: upstream's values", published, list(values(found, ppo))),
            block("Does PPO come to ride free?", alone, list(rewards(found)), rides(found)),
            block("Does PPO beat the equilibrium?", one, list(deviations(found)), beats(found)),
            block("Upstream's PPO", night, list(nightly(ppo))),
        ]
    )


def values(found: Found, ppo: Mapping[str, Sequence[Any]]) -> Iterator[Row]:
    """Rows of upstream's equilibria."""
    known = dict(single(found, "nash"))
    for fact in upstream()["equilibria"]:
        if result := known.get(fact["scenario"]):
            yield {
                "scenario": fact["scenario"],
                "players": players(fact["players"]),
                "published": f"{fact['payoff']:.0f}",
                "same game": within(result["theirs"]),
                "its nights": f"{result['their_nights']:.0f}",
                "they work": shares([result["works"]]),
                "our ending": within(result["ours"]),
                "by ten numbers": within(result["ours_by_ten"]),
                "PPO": learned(ppo.get(fact["scenario"])),
                "caveat": fact.get("caveat", ""),
            }


def players(names: Sequence[str]) -> str:
    """A profile in short."""
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def shares(works: Sequence[Sequence[float]]) -> str:
    """How often the agents of teams work, from the one that works most, mean over teams."""
    ranks = zip(*(sorted(one, reverse=True) for one in works), strict=True)
    return ", ".join(f"{fmean(rank):.0%}" for rank in ranks)


def rewards(found: Found) -> Iterator[Row]:
    """Rows of learners for themselves or the team."""
    for name in SOCIAL:
        for kind in ("own", "team"):
            if results := seeds(found, "reward", name, kind):
                yield {
                    "scenario": name,
                    "reward": kind,
                    "return": over_seeds([one["team"] for one in results], ".0f"),
                    "they work": shares([one["works"] for one in results]),
                    "gain": over_seeds([one["gain"][0] for one in results], ".1f"),
                }


def rides(found: Found) -> str:
    """Whether learning for oneself lowers work and return."""
    said = []
    for name in SOCIAL:
        own, team = (seeds(found, "reward", name, kind) for kind in ("own", "team"))
        if own and team:
            lost = [a["team"] - b["team"] for a, b in zip(own, team, strict=True)]
            least = [fmean(min(one["works"]) for one in group) for group in (own, team)]
            said.append(
                f"{name}: learned from the own reward, a team earns {over_seeds(lost)} beside the "
                f"team's, and its idlest agent works on {least[0]:.0%} of the nights, not "
                f"{least[1]:.0%}"
            )
    gains = {
        f"{name}, {kind} reward": [one["gain"][0] for one in seeds(found, "reward", name, kind)]
        for name, kind in product(SOCIAL, ("own", "team"))
    }
    gaining = [row for row, each in gains.items() if sign(each) > 0]
    if all(gains.values()):
        said.append(
            "a best response, which begins as the player, earns more by its interval over seeds "
            f"in {', '.join(gaining) or 'no row'}: where it does not, PPO finds no way of "
            "playing that seat that pays more"
        )
    return f"{'; '.join(said)}." if said else ""


def beats(found: Found) -> str:
    """Where a deviation from upstream's equilibrium pays."""
    results = [
        found[str(part)]
        for part in bucket_questions.parts()
        if part.question == "deviate" and str(part) in found
    ]
    pays = [one for one in results if one["gain"][0] > one["gain"][1]]
    if not pays:
        return "No seat where the gain's interval lies above 0."
    hurts = sum(one["team"][1] < one["team"][0] for one in pays)
    return (
        f"Yes, in {len(pays)} of {len(results)} seats, by the interval over games: with our ending "
        f"upstream's profile is no equilibrium there. In {hurts} of them the team loses by it."
    )


def deviations(found: Found) -> Iterator[Row]:
    """Rows of PPO in one seat of upstream's equilibria."""
    for part in bucket_questions.parts():
        if part.question == "deviate" and str(part) in found:
            result, profile = found[str(part)], bucket_questions.profile(part.scenario)
            yield {
                "scenario": part.scenario,
                "in the seat of": profile[int(part.kind)],
                "who earned": f"{result['before']:.0f}",
                "PPO's gain": "{:.1f} ± {:.1f}".format(*result["gain"]),
                "team before": f"{result['team'][0]:.0f}",
                "team with PPO": f"{result['team'][1]:.0f}",
            }


def nightly(ppo: Mapping[str, Sequence[Any]]) -> Iterator[Row]:
    """Rows of what upstream's PPO learned."""
    for fact in upstream()["ppo"]:
        if lines := ppo.get(fact["scenario"]):
            nights = [4 * one["returns"][LEARNED] / one["nights"] for one in lines]
            yield {
                "scenario": fact["scenario"],
                "upstream's learner": f"{fact['learner']}, {fact['seeds']} seeds",
                "it earned": f"{fact['night']:.1f}",
                "random": f"{fact['random']:.1f}",
                "guard": f"{fact['specialist']:.1f}" if "specialist" in fact else "",
                "ours": over_seeds(nights, ".1f"),
            }
