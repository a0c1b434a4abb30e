'use strict';
// What a run learned: behaviours with their evidence and the prompts they changed, or weights.

const STATUSES = ['accepted', 'trial', 'candidate', 'rejected', 'retired', 'merged'];

function learned(run, open) {
  const behaviors = [...run.behaviors]
    .sort((one, other) => rankOf(one.status) - rankOf(other.status));
  const diff = run.summary?.prompt_diff;
  if (!behaviors.length && !diff) return null;
  return [
    el('h3', {}, 'Behaviours'),
    diff ? diffBlock(diff) : accepted(run) ? null : el('p', { class: 'fine' }, 'No behaviour ' +
      'stands in a prompt: the system prompts are those of the beginning.'),
    listed(behaviors.filter(inPlay), run, open), others(behaviors, run, open),
  ];
}

const inPlay = (one) => ['accepted', 'trial'].includes(one.status);
const listed = (behaviors, run, open) => behaviors.length
  ? el('ol', { class: 'behaviors' }, behaviors.map((one) => behavior(one, run, open))) : null;

/** What stands in no prompt: folded, with how many there are of each status. */
function others(behaviors, run, open) {
  const rest = behaviors.filter((one) => !inPlay(one));
  if (!rest.length) return null;
  const counts = STATUSES.map((status) => [status,
    rest.filter((one) => (one.status ?? 'candidate') === status).length]);
  return folded(counts.filter(([, number]) => number)
    .map(([status, number]) => `${number} ${status}`).join(', '), () => listed(rest, run, open));
}

const rankOf = (status) => STATUSES.indexOf(status ?? 'candidate');

/** A unified diff; the signs stay, so that colour is not all that tells. */
function diffBlock(text) {
  const kind = (row) => row.startsWith('+++') || row.startsWith('---') ? 'file'
    : row.startsWith('@@') ? 'hunk' : row.startsWith('+') ? 'plus'
      : row.startsWith('-') ? 'less' : 'same';
  return el('figure', { class: 'diff' },
    el('figcaption', {}, 'What the behaviours changed in the system prompts'),
    el('pre', { class: 'text', tabindex: 0 }, text.replace(/\n$/, '').split('\n').map((row) =>
      el('span', { class: kind(row) }, shown(row), '\n'))));
}

function behavior(one, run, open) {
  const status = one.status ?? 'candidate';
  return el('li', { class: `behavior ${status}` },
    el('p', { class: 'behavior-head' }, el('b', {}, status), ' ', one.kind ?? 'rule', ' for ',
      shown(one.agent),
      ` \u00b7 update ${one.born ?? 0} \u00b7 `, el('code', {}, shown(one.id ?? ''))),
    one.kind === 'example' ? el('pre', { class: 'text', dir: 'auto', tabindex: 0 }, shown(one.text))
      : el('p', { class: 'prose' }, shown(one.text)),
    one.why ? el('p', { class: 'fine' }, 'Why: ', shown(one.why)) : null,
    evidence(one.evidence, 'trial', run, open), evidence(one.retest, 'retest', run, open),
    one.note ? el('p', { class: 'fine' }, shown(one.note)) : null);
}

function evidence(found, name, run, open) {
  if (!found) return null;
  const { pairs = 0, lift = 0, low = -1, high = 1 } = found;
  const points = (value) => signed(100 * value, 1);
  const from = (found.episodes ?? []).filter((number) => run.rows.some((r) => r.episode === number));
  return el('div', { class: 'evidence' },
    pairs ? whisker(lift, low, high, Math.max(0.1, Math.abs(low), Math.abs(high))) : null,
    el('p', {}, pairs
      ? `${name}: ${points(lift)} points [${points(low)}, ${points(high)}] on ` +
        plural(pairs, 'pair') + (found.level ? `, e-value ${figure(found.e_value ?? 1)} ` +
        `(${figure(1 / found.level)} decides)` : '')
      : `${name}: not tried yet`),
    from.length ? el('p', { class: 'fine' }, 'Distilled from ', from.map((number, place) => [
      place ? ', ' : '', el('button', { type: 'button', class: 'plain',
        on: { click: () => open(number) } }, `episode ${number}`)])) : null);
}

const FIGURES = { reward: 'reward', loss: 'loss', advantage: 'advantage', rate: 'learning rate',
  samples: 'actions used', skipped: 'skipped (equal rewards)', tokens: 'tokens',
  entropy: 'entropy, nats per token', length: 'answer length, tokens', truncated: 'answers cut off',
  flat: 'problems without variance', kl: 'KL to the base, nats per token',
  clipped: 'ratios clipped', tokens_per_s: 'tokens drawn per second' };

/** Updates of the weights: their figures as curves, then each with its checkpoint. */
function weights(run) {
  if (!local(run) || !run.updates.length) return null;
  const names = [...new Set(run.updates.flatMap((one) => Object.keys(one.figures)))];
  const agents = [...new Set(run.updates.flatMap((one) => Object.keys(one.norms)))];
  const curve = (name, value) => small(name, run.updates
    .filter((one) => isNumber(value(one))).map((one) => [one.update, value(one)])).node;
  const figures = [
    ...names.map((name) => curve(FIGURES[name] ?? name, (one) => one.figures[name])),
    ...agents.map((agent) => curve(`gradient norm, ${agent}`, (one) => one.norms[agent])),
  ];
  return [el('h3', {}, 'Updates'), el('div', { class: 'smalls' }, figures),
    folded(`All ${plural(run.updates.length, 'update')}`, () => updateTable(run, names))];
}

function updateTable(run, names) {
  const dev = new Map(run.dev.map((one) => [one.update, one.reward]));
  const heads = [{ name: 'update', number: true }, { name: 'episodes', number: true },
    ...names.map((name) => ({ name: FIGURES[name] ?? name, number: true })),
    { name: 'dev reward', number: true }, { name: 'checkpoint' }];
  const best = run.summary?.best_update;
  const began = dev.has(0) ? [['0', '0', ...names.map(() => ''), fixed(dev.get(0)), '']] : [];
  return table(heads, [...began, ...run.updates.map((one) => [
    String(one.update), String(one.after), ...names.map((name) => figure(one.figures[name])),
    dev.has(one.update) ? fixed(dev.get(one.update)) : '',
    one.checkpoint ? [shown(one.checkpoint), one.kept ? '' : ' (pruned)',
      one.update === best ? ' best on dev' : ''] : ''])]);
}
