'use strict';
// Several runs: their figures as one table, their rewards as one chart, and the switch.

const mainRuns = () => RUNS.map((run, place) => place).filter((place) => RUNS[place].kind === 'run');
const modelOf = (run) => run.summary ? `${run.summary.provider}/${run.summary.model}` : '';
const local = (run) => run.backend === 'local';

/** A search is chosen by its best of k, a policy by its reward. */
const worth = (run) => local(run) ? (row) => row.reward : (row) => row.best;

function compareRuns(choose) {
  const places = mainRuns();
  if (places.length < 2) return;
  const section = $('compare');
  section.hidden = false;
  const writers = places.filter((place) => !RUNS[place].steps);
  refill(section,
    el('h2', { id: 'compare-title' }, 'Side by side'),
    writers.length ? comparisonTable(writers, choose) : null,
    writers.length > 1 ? comparedRewards(writers) : null,
    comparedSteps(places.filter((place) => RUNS[place].steps), choose),
  );
}

function comparisonTable(places, choose) {
  const heads = [
    { name: 'run' }, { name: 'task' }, { name: 'backend' }, { name: 'model' },
    ...['episodes', 'reward', 'best of k', 'updates', 'calls', 'dollars']
      .map((name) => ({ name, number: true })),
  ];
  const rows = places.map((place) => {
    const run = RUNS[place], found = figuresOf(run);
    return [
      chooser(place, choose, places.length > 1 ? toneKey(places.indexOf(place)) : null),
      shown(run.task), shown(run.backend), shown(modelOf(run)), count(run.rows.length),
      fixed(found.reward), fixed(found.best), count(run.updates.length), count(found.calls),
      dollars(found.usd),
    ];
  });
  const caption = el('p', { class: 'fine' },
    'Reward: mean over all trajectories. Best of k: mean over each episode\u2019s best.');
  return [table(heads, rows), caption];
}

/** Shows that run below. */
const chooser = (place, choose, key = null) => el('button', { type: 'button',
  class: 'plain choose', 'data-run': place, on: { click: () => choose(place) } },
key, shown(RUNS[place].label));

const toneKey = (tone) => svg('svg', { width: 22, height: 10, 'aria-hidden': 'true' },
  svg('path', { class: `line tone-${tone % 6}`, d: 'M1 5L21 5' }));

function comparedRewards(places) {
  const series = places.filter((place) => RUNS[place].rows.length).map((place, tone) => {
    const run = RUNS[place];
    const points = curves(run).smooth(worth(run));
    return { name: run.label, points, kind: 'line', tone: tone % 6 };
  });
  if (!series.length) return null;
  const maps = series.map((one) => [one.name, new Map(one.points)]);
  return chart({
    label: 'Rewards of the runs over episodes', unit: 'episode', series,
    said: (x) => `episode ${x}: ` + maps.filter(([, points]) => points.has(x))
      .map(([name, points]) => `${name} ${fixed(points.get(x))}`).join(' \u00b7 '),
    caption: 'Running mean of a search\u2019s best of k, else of the reward; a window of about a twelfth of the episodes.',
  });
}

/** Which run is shown below: one with its evaluations and baselines, by name. */
function runSwitch(chosen, choose) {
  if (RUNS.length < 2) return null;
  const option = (place) => el('option', { value: place, selected: place === chosen },
    RUNS[place].kind === 'run' ? RUNS[place].label
      : `\u2003${RUNS[place].kind}: ${RUNS[place].label}`);
  const order = mainRuns().flatMap((place) => [
    place, ...RUNS.map((_, other) => other).filter((other) => RUNS[other].of === place)]);
  return el('label', { class: 'switch' }, 'Run ', el('select', {
    id: 'switch', on: { change: (event) => choose(Number(event.target.value)) },
  }, order.map(option)));
}
