'use strict';
// The records of the page: read from their elements when somebody looks at them.

const DATA = JSON.parse($('index').textContent);
const RUNS = DATA.runs;
const held = { lines: null, trees: new Map() };

/** The text whose lines have these numbers; a page that is served gets texts as they are. */
function textOf(numbers) {
  if (typeof numbers === 'string') return numbers;
  held.lines ??= JSON.parse($('lines').textContent);
  return (numbers ?? []).map((number) => held.lines[number]).join('\n');
}

/** An episode's tree; null where the page had no room for it, or has not asked for it yet. */
function treeOf(run, episode) {
  const id = `episode-${run}-${episode}`;
  if (!held.trees.has(id)) {
    const element = $(id);
    if (!element && served()) return null;
    held.trees.set(id, element ? grown(JSON.parse(element.textContent)) : null);
  }
  return held.trees.get(id);
}

/** A record with its nodes by id, each knowing its children, its group and its samples. */
function grown(record) {
  const nodes = new Map();
  for (const node of record.nodes) {
    nodes.set(node.id, { ...node, children: [], places: [], group: null, depth: 0, up: null });
  }
  for (const group of record.groups) settle(nodes, group);
  for (const node of nodes.values()) {
    node.up = nodes.get(node.parent) ?? null;
    node.depth = node.up ? node.up.depth + 1 : 0;
  }
  const root = record.nodes.find((node) => node.parent === null).id;
  const best = new Set(pathTo(nodes.get(record.best)).map((node) => node.id));
  return { record, nodes, root: nodes.get(root), best };
}

/** Samples that led to equal states are one child that stands there several times. */
function settle(nodes, group) {
  group.children.forEach((id, place) => {
    const node = nodes.get(id);
    if (!node.group) {
      node.group = group;
      nodes.get(group.parent).children.push(node);
    }
    if (node.group === group) node.places.push(place);
  });
}

/** From the start to this node, both included. */
function pathTo(node) {
  const path = [];
  for (let at = node; at; at = at.up) path.unshift(at);
  return path;
}

const valueIn = (node) => node.group ? node.group.values[node.places[0]] : node.value;
const advantageOf = (node) => node.group ? node.group.advantages[node.places[0]] : null;
const moversOf = (node) => node.group ? node.group.agents.join(' + ') : '';

/** The leaf with the lowest value among those that the search kept. */
function worstLeaf(tree) {
  const leaves = [...tree.nodes.values()].filter((n) => n.survived && !n.children.length);
  const named = (tree.record.credits ?? []).find((credit) => credit.leaf !== tree.record.best);
  if (named) return tree.nodes.get(named.leaf);
  return leaves.reduce((low, leaf) => (leaf.value ?? 1) < (low.value ?? 1) ? leaf : low, leaves[0]);
}

const total = (parts) => {
  const weight = (part) => part.weight ?? 1;
  const sum = parts.reduce((all, part) => all + weight(part), 0);
  return sum ? parts.reduce((all, part) => all + part.value * weight(part), 0) / sum : NaN;
};

/** Rewards of a run's episodes, and their mean over the last few. */
function curves(run) {
  const rows = run.rows;
  const window = Math.max(1, Math.min(rows.length, Math.max(5, Math.round(rows.length / 12))));
  const smooth = (key) => rows.map((row, place) => {
    const part = rows.slice(Math.max(0, place - window + 1), place + 1);
    return [row.episode, part.reduce((sum, one) => sum + key(one), 0) / part.length];
  });
  return { window, smooth };
}

const mean = (numbers) =>
  numbers.length ? numbers.reduce((sum, number) => sum + number, 0) / numbers.length : NaN;

/** What a run earned: of its summary, else summed up here. */
function figuresOf(run) {
  const { summary, rows } = run;
  return {
    reward: summary?.mean_reward ?? mean(rows.map((row) => row.reward)),
    partial: summary?.partial ?? false,
    best: summary?.best_of_k ?? mean(rows.map((row) => row.best)),
    highest: summary?.best_reward ?? Math.max(...rows.map((row) => row.best)),
    calls: summary?.calls ?? rows.reduce((sum, row) => sum + row.calls, 0),
    usd: summary?.cost_usd ?? rows.reduce((sum, row) => sum + row.usd, 0),
  };
}
