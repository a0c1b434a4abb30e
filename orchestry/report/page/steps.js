'use strict';
// Runs of backend ppo: returns over environment steps, how learning went, checkpoints.

/** One run: what it came to, and its curves. */
function policies(run) {
  const { steps } = run;
  return [
    el('dl', { class: 'figures' }, cards(run).map(([name, value, more]) => el('div', {},
      el('dt', {}, name), el('dd', {}, value, el('small', {}, more || '\u00a0'))))),
    el('p', { class: 'facts' }, [...steps.facts, ['device', run.device], ['machine', run.hardware],
    ['time', run.time], ['ended', ENDINGS[steps.ended] ?? steps.ended]]
      .filter(([, value]) => value).map(([name, value]) => el('span', {}, el('b', {}, name), ' ', shown(value)))),
    returns(steps),
    measured(steps.measured),
    checkpoints(steps.checkpoints),
  ];
}

function cards({ steps }) {
  const { last } = steps, test = steps.evaluations.at(-1);
  const top = steps.return.reduce((best, one) => !best || one[1] > best[1] ? one : best, null);
  return [
    ['return', figure(steps.return.at(-1)?.[1]), `over ${steps.over}`],
    ['best', figure(top?.[1]), top ? `at step ${count(top[0])}` : ''],
    ['evaluation', figure(test?.[1]), test ? `at step ${count(test[0])}` : 'none was asked for'],
    ['steps', count(last.steps ?? 0), ofSteps(steps)],
    ['games', count(last['train/total_episodes'] ?? 0), ''],
    ['steps per second', figure(Math.round(last['train/steps_per_sec'])), ''],
  ];
}

/** A run plays whole batches, so it may play more steps than were asked for. */
function ofSteps({ asked, last }) {
  return `${(last.steps ?? 0) < asked ? 'of' : 'in whole batches, at least'} ${count(asked)}`;
}

/** The return's curve; below it small ones, which follow its cursor. */
function returns(steps) {
  const smalls = steps.figures.map((one) => small(one.name, one.points));
  const [means, batches, tests] = ['return', 'batches', 'evaluations']
    .map((name) => new Map(steps[name]));
  const banded = steps.band.length
    ? ' The band of the return goes from the lowest of these batches to the highest.' : '';
  const curve = steps.return.length ? chart({
    label: 'Return over environment steps; arrow keys move through the batches',
    unit: 'environment step', height: 260,
    series: [
      { name: 'each batch', points: steps.over === 'a batch' ? [] : steps.batches, kind: 'dots', tone: 5 },
      { name: `mean over the games of ${steps.over}`, points: steps.return, kind: 'line', tone: 0,
        band: steps.band.length ? steps.band : null },
      { name: 'evaluations, in games of their own', points: steps.evaluations, kind: 'marks',
        tone: 1 },
    ],
    said: (x) => [`step ${count(x)}`, ...[['return', means], ['this batch', batches],
      ['evaluation', tests]].filter(([, points]) => points.has(x))
      .map(([name, points]) => `${name} ${figure(points.get(x))}`)].join(' \u00b7 '),
    moved: (x) => smalls.forEach((one) => one.move(x)),
  }) : el('p', { class: 'notice' }, 'No game of this run has ended, so it has no return.');
  return [el('h3', {}, 'Return of a game, mean over the agents'), curve,
    smalls.length ? [el('h3', {}, 'How learning went'),
      el('div', { class: 'smalls' }, smalls.map((one) => one.node)),
      el('p', { class: 'fine' }, `A point is the mean over ${steps.over}.${banded}`)] : null];
}

/** Evaluations in new games: a row per team. */
function measured(found) {
  if (!found.length) return null;
  const heads = [{ name: 'game' }, { name: 'team' },
    ...['step', 'return', '95 %'].map((name) => ({ name, number: true }))];
  return [el('h3', {}, 'Evaluation in new games'), table(heads, found.flatMap((one) =>
    one.teams.map(({ team, mean, low, high }) => [shown(one.game), shown(team), count(one.steps),
      figure(mean), `${figure(low)} to ${figure(high)}`])))];
}

function checkpoints(found) {
  if (!found.length) return el('p', { class: 'fine' }, 'There is no checkpoint yet.');
  const kept = found.filter((one) => one.kept).length;
  const heads = [{ name: 'checkpoint' }, { name: 'step', number: true }, { name: '' }];
  return folded(`${plural(found.length, 'checkpoint')}, ${kept} kept`, () => table(heads,
    found.map((one) => [shown(one.name), count(one.steps), one.kept ? '' : 'pruned'])));
}

/** Several runs: a table, and per task one chart with a line per setting. */
function comparedSteps(places, choose) {
  if (!places.length) return null;
  const last = (place, name) => figure(RUNS[place].steps.last[name]);
  const heads = [{ name: 'run' }, ...['steps', 'games', 'return', 'evaluation', 'entropy',
    'explained variance', 'steps/s'].map((name) => ({ name, number: true }))];
  const rows = places.map((place) => [chooser(place, choose),
    ...['steps', 'train/total_episodes', 'train/avg_reward_100ep', 'evaluation/reward',
      'learn/entropy', 'learn/explained_variance'].map((name) => last(place, name)),
    figure(Math.round(RUNS[place].steps.last['train/steps_per_sec']))]);
  const charts = DATA.arms.filter((one) => places.length > 1 && one.arms.length);
  return [table(heads, rows), el('p', { class: 'fine' }, 'Return: mean over agents and the last ' +
    '100 games. Evaluation: the last one, in games of its own.'), charts.map(armsChart)];
}

/** Returns of one game; those of others have another scale. */
function armsChart({ game, over, arms }) {
  const named = (arm) => arm.seeds > 1 ? `${arm.label}, mean of ${arm.seeds} seeds` : arm.label;
  const series = arms.flatMap((arm, place) => [
    { ...arm, name: named(arm), kind: 'line', tone: place % 6 },
    { name: `${arm.label}: evaluations`, points: arm.evaluations, kind: 'dots', tone: place % 6,
      quiet: true },
  ]);
  const maps = series.map((one) => [one.name, new Map(one.points), new Map(
    (one.band ?? []).map(([x, low, high]) => [x, ` (${figure(low)} to ${figure(high)})`]))]);
  const several = arms.some((arm) => arm.seeds > 1);
  return chart({
    label: `${game}: return over environment steps`, unit: 'environment step', series, height: 260,
    said: (x) => `step ${count(x)}: ` + maps.filter(([, points]) => points.has(x))
      .map(([name, points, band]) => `${name} ${figure(points.get(x))}${band.get(x) ?? ''}`)
      .join(' \u00b7 '),
    caption: `${game}: return, mean over the games of ${over}` +
      `${several ? '; the band goes from the lowest to the highest seed' : ''}.` +
      `${arms.some((arm) => arm.evaluations.length) ? ' Dots: evaluations.' : ''}`,
  });
}
