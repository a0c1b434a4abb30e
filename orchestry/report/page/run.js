'use strict';
// One run: what it came to, its learning curve, and what was measured around it.

function showRun(place, choose, open) {
  const run = RUNS[place];
  const blocks = [
    el('div', { class: 'run-head' },
      el('h2', { id: 'run-title' },
        RUNS.length > 1 ? shown(nameOf(run)) : 'The run', ' ',
        el('span', { class: 'of' }, shown(run.folder))), runSwitch(place, choose)),
    run.steps ? policies(run) : [summary(run), rewardCurve(run, open), around(place, choose),
      tags(run), learned(run, open), weights(run)],
    folded('Configuration', () => el('pre', { class: 'text', tabindex: 0 }, shown(run.config))),
  ];
  refill($('run'), blocks);
  $('browser').hidden = Boolean(run.steps);
  document.querySelector('.skip').hidden = Boolean(run.steps);
  $('notices').replaceChildren(...notices(place));
}

const nameOf = (run) =>
  run.kind === 'run' ? run.label : `${RUNS[run.of].label}, ${run.kind} ${run.label}`;

function notices(place) {
  const run = RUNS[place];
  const found = run.missing.map((what) => `This run lacks something: ${what}.`.replace('..', '.'));
  const gone = run.rows.filter((row) => !row.kept).length;
  if (gone) {
    found.push(`The trees of ${gone} of ${run.rows.length} episodes are left out, since the page ` +
      `may hold ${figure(DATA.cap / 1e6)} MB: their figures are here, their samples are in ` +
      `episodes.jsonl of the run. Kept are the best, the first and the last episode, and such as ` +
      'lie evenly between them.');
  }
  return [...run.collapses, ...found]
    .map((text) => el('p', { class: 'notice', role: 'note' }, shown(text)));
}

function summary(run) {
  const found = figuresOf(run), text = run.summary;
  const cards = [
    ['reward', fixed(found.reward),
      `${found.partial ? 'partial: ' : ''}mean over all trajectories`],
    ['best of k', fixed(found.best), isNumber(text?.best_episode)
      ? `highest ${fixed(found.highest)}, episode ${text.best_episode}` : ''],
    ['episodes', count(run.rows.length), text ? `of ${count(text.episodes_asked)}` : ''],
    ['calls', count(found.calls), text ? `${count(text.cache_hits)} from the cache` : ''],
    ['dollars', dollars(found.usd), text && isNumber(text.budget_usd) ? `of $${text.budget_usd}` : ''],
    ['updates', count(run.updates.length), local(run) ? 'of the weights'
      : `${count(text?.accepted || accepted(run))} accepted in the prompts`],
  ];
  return [
    el('dl', { class: 'figures' }, cards.map(([name, value, more]) => el('div', {},
      el('dt', {}, name), el('dd', {}, value, el('small', {}, more || '\u00a0'))))),
    el('p', { class: 'facts' }, facts(run).map(([name, value]) =>
      el('span', {}, el('b', {}, name), ' ', shown(value)))),
    usage(run),
  ];
}

/** How many of its behaviours stand in the prompts, as its library says: a summary comes at the end. */
const accepted = (run) => run.behaviors.filter((one) => one.status === 'accepted').length;

const ENDINGS = {
  done: 'done', budget: 'stopped at the budget', interrupted: 'interrupted', failed: 'failed',
};

function facts(run) {
  const { summary: found } = run;
  if (!found) return [['task', run.task], ['backend', run.backend]];
  return [
    ['task', run.task], ['backend', run.backend], ['model', modelOf(run)],
    run.device ? ['device', run.device] : null, run.hardware ? ['machine', run.hardware] : null,
    ['strategy', found.strategy],
    found.leaves && (found.tags.cooperates || found.schemes?.length)
      ? ['cooperation rate', `${Math.round(100 * (found.tags.cooperates ?? 0) / found.leaves)} %`]
      : null,
    ['tokens', `${count(found.input_tokens)} in, ${count(found.output_tokens)} out`],
    ['time', run.time], run.now ? null : ['ended', ENDINGS[found.stopped]],
    Object.keys(found.judgements).length
      ? ['judge', Object.entries(found.judgements).map((one) => one.join(' ')).join(', ')] : null,
  ].filter(Boolean);
}

function usage(run) {
  const rows = run.summary?.usage ?? [];
  if (!rows.length) return null;
  const heads = [{ name: 'agent' }, { name: 'for' },
    ...['calls', 'cached', 'tokens in', 'tokens out', 'dollars']
      .map((name) => ({ name, number: true }))];
  return folded('Calls by agent and purpose', () => table(heads, rows.map((row) => [
    shown(row.agent), shown(row.purpose), count(row.calls), count(row.cache_hits),
    count(row.input_tokens), count(row.output_tokens), dollars(row.usd)])));
}

function rewardCurve(run, open) {
  if (!run.rows.length) return null;
  const { window, smooth } = curves(run);
  const rows = new Map(run.rows.map((row) => [row.episode, row]));
  const parts = partCurves(run);
  const dev = run.dev.map((one) => [episodeOf(run, one.update), one.reward]);
  const key = worth(run);
  const what = local(run) ? 'reward' : 'best of k';
  const figure = chart({
    label: 'Learning curve; arrow keys move through the episodes, Enter opens one',
    unit: 'episode', height: 240, open,
    series: [
      { name: what, points: run.rows.map((row) => [row.episode, key(row)]), kind: 'dots', tone: 5 },
      { name: `running mean of ${window}`, points: smooth(key), kind: 'line', tone: 0 },
      { name: 'dev problems', points: dev, kind: 'marks', tone: 1 },
    ],
    said: (x) => curveSaid(x, rows.get(x), run.dev.find((_, place) => dev[place][0] === x)),
    moved: (x) => parts.forEach((part) => part.move(x)),
  });
  return [el('h3', {}, local(run) ? 'Reward' : 'Best of k'), figure, parts.length ? el('div', { class: 'smalls' },
    parts.map((part) => part.node)) : null,
  parts.length ? el('p', { class: 'fine' }, `Parts of the reward, running ` +
    `means of ${window}. A click in the curve opens the episode.`) : null];
}

/** The episode before which an update's team stood. */
function episodeOf(run, update) {
  const after = run.updates.find((one) => one.update === update)?.after ?? 0;
  return update === 0 ? run.rows[0].episode : run.rows[Math.min(after, run.rows.length) - 1].episode;
}

function curveSaid(x, row, dev) {
  const said = row ? [`episode ${x}`, `reward ${fixed(row.reward)}`,
    `best of k ${fixed(row.best)}`,
    ...Object.entries(row.parts).map(([name, value]) => `${name} ${fixed(value)}`), row.problem]
    : [`episode ${x}`];
  if (dev) said.push(`dev after update ${dev.update}: ${fixed(dev.reward)}`);
  return said.join(' \u00b7 ');
}

function partCurves(run) {
  const names = [...new Set(run.rows.flatMap((row) => Object.keys(row.parts)))];
  if (names.length < 2) return [];
  return names.map((name) => small(name, curves(run).smooth((row) => row.parts[name] ?? 0)));
}

/** Shares of the evaluated trajectories with each tag, such as schemes of cooperation. */
function tags(run) {
  const names = [...new Set(run.rows.flatMap((row) => Object.keys(row.tags)))].sort();
  if (!names.length) return null;
  const leaves = run.rows.reduce((sum, row) => sum + row.leaves, 0);
  const rows = names.map((name) => {
    const found = run.rows.reduce((sum, row) => sum + (row.tags[name] ?? 0), 0);
    return { name, found, share: found / leaves };
  }).sort((one, other) => other.share - one.share);
  const smooth = curves(run).smooth;
  const shares = new Map(names.map((name) => [name,
    smooth((row) => (row.tags[name] ?? 0) / Math.max(1, row.leaves))]));
  const heads = [{ name: 'tag' }, { name: 'share', number: true }, { name: 'trajectories',
    number: true }, { name: 'over the episodes' }];
  return [el('h3', {}, 'Tags and cooperation'), table(heads, rows.map(({ name, found, share }) => [
    shown(name), `${fixed(100 * share, 1)} %`, `${count(found)} of ${count(leaves)}`,
    shareCurve(name, shares.get(name), Math.max(0.1, ...[...shares.values()].flat()
      .map((point) => point[1])))]), { class: 'tags' }),
  el('p', { class: 'fine' }, 'Shares of the trajectories that reached the end; their running ' +
    'means over the episodes have one scale.')];
}

function shareCurve(name, points, top) {
  const width = 220, height = 22;
  const x = scale(points[0][0], points.at(-1)[0], 0, width), y = scale(0, top, height - 1, 2);
  const path = line(points, x, y);
  return svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `share of ${name}, from ${fixed(points[0][1], 2)} to ` +
      fixed(points.at(-1)[1], 2) },
  svg('path', { class: 'area', d: `${path}L${width} ${height}L0 ${height}Z` }),
  svg('path', { class: 'line thin tone-0', d: path }));
}
