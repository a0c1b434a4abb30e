'use strict';
// What was measured around a run: its held-out evaluations and its baselines, beside itself.

function around(place, choose) {
  const others = RUNS.map((_, other) => other).filter((other) => RUNS[other].of === place);
  if (!others.length) return null;
  const places = [place, ...others];
  const ks = [...new Set(places.flatMap((one) => Object.keys(RUNS[one].measures?.pass_at ?? {})))];
  const heads = [
    { name: '' }, { name: 'problems', number: true }, { name: 'reward', number: true },
    { name: '' }, { name: 'best of k', number: true },
    ...ks.map((k) => ({ name: `pass@${k}`, number: true })),
    ...['calls', 'tokens/s', 'dollars'].map((name) => ({ name, number: true })),
  ];
  return [
    el('h3', {}, 'Evaluations and baselines'),
    table(heads, places.map((one) => measuredRow(one, place, ks, choose))),
    el('p', { class: 'fine' }, 'Means with 95 % intervals over problems. The run itself ' +
      'played train problems; an evaluation those of its split. Lines are drawn on [0, 1]. ' +
      'Dollars count cached answers as they would cost.'),
  ];
}

function measuredRow(one, place, ks, choose) {
  const run = RUNS[one], found = run.measures;
  const name = one === place ? 'the run itself' : [`${run.kind} `, el('button', {
    type: 'button', class: 'plain', on: { click: () => choose(one) } }, shown(run.label))];
  const sums = figuresOf(run);
  const problems = new Set(run.rows.map((row) => row.problem)).size;
  return [
    name, count(problems), between(found?.reward, sums.reward), found ? forest(found.reward) : '',
    between(found?.best, sums.best), ...ks.map((k) => between(found?.pass_at[k], NaN)),
    count(sums.calls), found ? figure(found.tokens_per_s) : '', dollars(found?.usd ?? sums.usd),
  ];
}

const between = (interval, otherwise) => interval
  ? [fixed(interval.mean), el('small', {}, ` [${fixed(interval.low, 2)}, ${fixed(interval.high, 2)}]`)]
  : fixed(otherwise);

/** A mean with its interval on [0, 1]. */
function forest(interval) {
  const width = 120, x = scale(0, 1, 4, width - 4);
  return svg('svg', { width, height: 16, viewBox: `0 0 ${width} 16`, class: 'forest',
    'aria-hidden': 'true' },
  svg('line', { class: 'grid', x1: x(0), x2: x(1), y1: 8, y2: 8 }),
  svg('line', { class: 'span', x1: x(interval.low), x2: x(interval.high), y1: 8, y2: 8 }),
  svg('circle', { cx: x(interval.mean), cy: 8, r: 3.6 }));
}
