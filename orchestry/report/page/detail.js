'use strict';
// The chosen episode's figures and credits, and the trajectory up to the chosen sample.

function showEpisode(place, row, tree, view, select) {
  const { record } = tree;
  const pruned = cutOf(tree).length;
  const jump = (name, key, id) => el('button', { type: 'button', class: 'plain',
    on: { click: () => select(id) } }, name, ' ', el('kbd', {}, key));
  refill($('episode'),
    el('h3', { class: 'episode-title' }, `Episode ${record.episode} `,
      el('span', { class: 'of' }, shown(record.problem))),
    el('p', { class: 'facts' }, [
      ['reward', fixed(record.mean_leaf_reward)], ['best of k', fixed(record.reward)],
      ['nodes', count(record.nodes.length - 1)], ['pruned', count(pruned)],
      ['calls', count(record.calls)], ['dollars', dollars(record.usd)], ['split', record.split],
      ['seed', record.seed],
    ].map(([name, value]) => el('span', {}, el('b', {}, name), ' ', value))),
    el('div', { class: 'jumps' }, jump('best leaf \u2605', 'b', record.best),
      jump('worst leaf', 'w', worstLeaf(tree).id),
      pruned ? el('button', { type: 'button', class: 'plain', id: 'pruned',
        on: { click: () => view.toggle() } }, prunedName(view), el('kbd', {}, 'p')) : null,
      folded('How to read the tree', treeKey)),
    credits(tree, select));
}

function treeKey() {
  return el('p', { class: 'fine' }, 'A column is a stage, a node a sample: its value in the group, ' +
    'its advantage (the value less the mean of its siblings), and \u00d7n where n samples led to ' +
    'equal states. The stem says who gave the value: ',
  Object.entries(SOURCES).map(([source, name]) => [
    el('span', { class: `stem ${source}` }), `\u2009${name}  `]),
  'A struck value was pruned. The heavy line leads to the best leaf, \u2605.');
}

/** Each agent's credit with its interval, for the best leaf and the worst. */
function credits(tree, select) {
  const found = tree.record.credits ?? [];
  if (!found.length) {
    const { unmeasured } = tree.record;
    return unmeasured ? el('p', { class: 'fine' }, `Credit: ${unmeasured}.`) : null;
  }
  const reach = Math.max(0.05, ...found.flatMap((one) => [one.low, one.high].map(Math.abs)));
  const leaves = [...new Set(found.map((one) => one.leaf))];
  return el('div', { class: 'credits' }, leaves.map((leaf) => el('table', { class: 'bare' },
    el('caption', {}, 'credit, ', el('button', { type: 'button', class: 'plain',
      on: { click: () => select(leaf) } },
    leaf === tree.record.best ? 'best leaf' : 'worst leaf')),
    el('tbody', {}, found.filter((one) => one.leaf === leaf).map((one) => el('tr', {},
      el('th', { scope: 'row' }, shown(one.agent)),
      el('td', {}, whisker(one.credit, one.low, one.high, reach)),
      el('td', { class: 'number' }, signed(one.credit), el('small', {},
        ` [${signed(one.low, 2)}, ${signed(one.high, 2)}]`))))))));
}

function showDetail(tree, id, rating) {
  const node = tree.nodes.get(id), path = pathTo(node).slice(1);
  const detail = $('detail');
  detail.scrollTop = 0;
  refill(detail, [
    node.up ? head(tree, node) : el('p', {}, 'The start of the episode. Choose a sample in the ' +
      'tree to see what its agents saw and answered.'),
    node.up ? group(node) : null, score(node), judged(node, rating),
    path.length ? el('h4', {}, 'Trajectory') : null,
    path.length ? el('ol', { class: 'moves' },
      path.map((step, place) => move(step, place, path.length))) : null,
  ]);
}

function head(tree, node) {
  const fate = node.survived ? node.id === tree.record.best ? 'best leaf'
    : node.children.length ? 'survived' : 'survived, a leaf' : 'pruned';
  return [
    el('h3', {}, shown(moversOf(node)), ' ', el('code', {}, node.id)),
    el('dl', { class: 'figures tight' }, [
      ['value', fixed(valueIn(node)), `by ${valuedBy(node)}`],
      ['advantage', signed(advantageOf(node)), 'in its group'],
      ['fate', fate, node.places.length > 1 ? `${node.places.length} equal samples` : ''],
    ].map(([name, value, more]) => el('div', {}, el('dt', {}, name),
      el('dd', {}, value, el('small', {}, more || '\u00a0'))))),
  ];
}

function group(node) {
  const { values } = node.group;
  const other = isNumber(node.value) && node.value !== valueIn(node)
    ? ` The mean of the leaves below it is ${fixed(node.value)}.` : '';
  return el('figure', { class: 'group' }, strip(values, node.places), el('figcaption', {},
    `Its group of ${values.length} on [0, 1]; the line is their mean, ${fixed(mean(values))}.` +
    other));
}

function score(node) {
  const { parts = [], tags = [], feedback = [] } = node.score ?? {};
  const notes = [
    tags.length ? el('p', { class: 'taglist' }, tags.map((tag) =>
      el('span', { class: 'tag' }, shown(tag)))) : null,
    feedback.length && textOf(feedback)
      ? el('p', { class: 'prose feedback' }, shown(textOf(feedback))) : null,
  ];
  if (!parts.length) return notes.some(Boolean) ? notes : null;
  const rows = parts.map((part) => el('tr', {}, el('th', { scope: 'row' }, shown(part.name)),
    el('td', {}, meter(part.value)), el('td', { class: 'number' }, fixed(part.value)),
    el('td', { class: 'number' }, part.weight === undefined || part.weight === 1 ? ''
      : `weight ${figure(part.weight)}`)));
  const sum = el('tr', { class: 'sum' }, el('th', { scope: 'row' }, 'total'),
    el('td', {}, meter(total(parts))), el('td', { class: 'number' }, fixed(total(parts))),
    el('td', {}));
  return [el('h4', {}, 'Score of the task'),
    el('table', { class: 'bare' }, el('tbody', {}, rows, parts.length > 1 ? sum : null)), notes];
}

function meter(value) {
  const width = 88, x = scale(0, 1, 0, width);
  return svg('svg', { width, height: 10, viewBox: `0 0 ${width} 10`, class: 'meter',
    'aria-hidden': 'true' }, svg('rect', { class: 'track', width, height: 4, y: 3 }),
  svg('rect', { class: 'full', width: x(Math.max(0, Math.min(1, value))) || 0, height: 4, y: 3 }));
}

function judged(node, rating) {
  const feedback = textOf(node.judge_feedback);
  const found = [];
  if (isNumber(node.judged) || feedback) {
    found.push(el('h4', {}, 'Judge'), el('p', { class: 'prose' },
      isNumber(node.judged) ? el('b', {}, fixed(node.judged)) : null, ' ', shown(feedback)));
  }
  if (rating) {
    found.push(el('h4', {}, 'A person said'), el('p', { class: 'prose' },
      el('b', {}, fixed(rating.rating)), ' ', shown(rating.comment)));
  }
  return found;
}

const THOUGHTS = {
  belief: ' infers what the others will do; nobody else sees this',
  step: ' prepares its action; nobody else sees this',
};

function move(node, place, moves) {
  const figures = el('p', { class: 'fine' }, `value ${fixed(valueIn(node))} by ` +
    `${valuedBy(node)}, advantage ${signed(advantageOf(node))}` +
    (node.survived ? '' : ', pruned'));
  return el('li', { class: place === moves - 1 ? 'move last' : 'move' },
    node.turns.map((turn) => [
      el('h5', {}, shown(turn.agent), THOUGHTS[turn.kind] ?? ''), place === moves - 1 ? null : figures, turnBlock(turn)]));
}

function turnBlock(turn) {
  const { completion } = turn, answer = textOf(completion.text), calls = completion.calls ?? [];
  const stop = (completion.stop ?? 'end') === 'end' ? '' : `, stopped by ${completion.stop}`;
  return [
    folded(`saw ${plural(turn.messages.length, 'message')}, ` +
      `${count(completion.input_tokens ?? 0)} tokens`,
    () => el('div', {}, turn.messages.map((message) => [
      el('p', { class: 'role' }, message.role),
      el('pre', { class: 'text seen', dir: 'auto', tabindex: 0 }, shown(textOf(message.content))),
      (message.calls ?? []).map((call) => callBlock(call))])),
    { class: 'saw' }),
    (completion.steps ?? []).map(stepBlock),
    answer.trim() ? el('pre', { class: 'text', dir: 'auto', tabindex: 0 }, shown(answer))
      : calls.length ? null : el('p', { class: 'text empty' }, 'an empty answer'),
    calls.map((call) => callBlock(call)),
    el('p', { class: 'fine' }, `${count(completion.output_tokens ?? 0)} tokens${stop}` +
      (completion.usd ? `, ${dollars(completion.usd)}` : '')),
  ];
}

/** What an agent said before its answer, and the results of the tools that it called. */
function stepBlock(step) {
  const said = textOf(step.said.text);
  return [
    said.trim() ? el('pre', { class: 'text', dir: 'auto', tabindex: 0 }, shown(said)) : null,
    step.said.calls.map((call, place) => callBlock(call, step.results[place])),
  ];
}

/** A call of a tool, with its result if the run made it; a program makes its own. */
function callBlock(call, result) {
  const what = ['called ', el('code', {}, shown(`${call.name} ${call.arguments}`))];
  if (result === undefined) return el('p', { class: 'saw' }, what);
  return folded(el('span', {}, what),
    () => el('pre', { class: 'text seen', dir: 'auto', tabindex: 0 },
      shown(result || 'an empty result')), { class: 'saw' });
}
