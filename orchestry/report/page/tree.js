'use strict';
// The search tree of an episode, drawn from left to right: one column per stage, one node per sample.

const COLUMN = 170, ROW = 26, START = 58;
const MANY = 160, HUGE = 400; // nodes from which the pruned are hidden, and branches closed

class TreeView {
  constructor(choose) {
    this.choose = choose;
    this.folded = new Set();
    this.pruned = true;
  }

  show(tree, chosen) {
    this.tree = tree;
    this.chosen = chosen;
    this.folded = tree.nodes.size > HUGE ? branchesOff(tree, chosen) : new Set();
    this.pruned = tree.nodes.size <= MANY || tree.nodes.get(chosen).survived === false;
    this.reach = Math.max(1e-9, ...tree.record.groups.flatMap((g) => g.advantages.map(Math.abs)));
    this.render(false);
  }

  /** The nodes on view, in the order of the keys, with their rows. */
  laid() {
    const order = [];
    let row = 0;
    const visit = (node) => {
      const place = { node, y: 0 };
      order.push(place);
      const below = this.open(node) ? this.kids(node).map(visit) : [];
      place.y = below.length ? (below[0].y + below.at(-1).y) / 2 : row++;
      return place;
    };
    visit(this.tree.root);
    return { order, rows: row };
  }

  kids(node) {
    return this.pruned ? node.children : node.children.filter((kid) => kid.survived);
  }

  open(node) {
    return !this.folded.has(node.id);
  }

  render(focus) {
    const { order, rows } = this.laid();
    this.order = order.map((place) => place.node);
    const at = new Map(order.map((place) => [place.node.id, place]));
    const depth = Math.max(...order.map((place) => place.node.depth));
    const width = START + depth * COLUMN, height = rows * ROW + 8;
    this.items = new Map(order.map((place) => [place.node.id, this.item(place)]));
    const box = el('div', { role: 'tree', id: 'tree', 'aria-label': 'Search tree',
      on: { keydown: (event) => this.key(event), click: (event) => this.click(event) } },
    this.edges(order, at, width, height), [...this.items.values()]);
    box.style.width = `${width}px`;
    box.style.height = `${height}px`;
    const heads = this.heads(order, depth);
    heads.style.width = `${width}px`;
    $('canvas').replaceChildren(heads, box);
    this.mark(focus);
  }

  /** Who moves in each stage. */
  heads(order, depth) {
    const names = Array.from({ length: depth }, () => new Set());
    for (const { node } of order) if (node.depth) names[node.depth - 1].add(moversOf(node));
    const heads = el('div', { class: 'stages', 'aria-hidden': 'true' },
      el('span', {}, 'start'), names.map((name) => el('span', {}, shown([...name].join(', ')))));
    [...heads.children].forEach((head, place) => {
      head.style.left = `${place ? START + (place - 1) * COLUMN : 0}px`;
    });
    return heads;
  }

  edges(order, at, width, height) {
    const middle = (place) => place.y * ROW + ROW / 2;
    const paths = order.filter(({ node }) => node.up).map((place) => {
      const { node } = place, up = at.get(node.up.id);
      const x1 = node.up.depth ? START + node.up.depth * COLUMN - 18 : START - 30;
      const x2 = START + (node.depth - 1) * COLUMN + 4, bend = (x1 + x2) / 2;
      const kind = this.tree.best.has(node.id) ? 'best' : node.survived ? 'kept' : 'cut';
      return { kind, path: svg('path', { class: `edge ${kind}`,
        d: `M${x1} ${middle(up)}C${bend} ${middle(up)} ${bend} ${middle(place)} ` +
          `${x2} ${middle(place)}` }) };
    });
    const ordered = ['cut', 'kept', 'best'].flatMap((kind) => paths.filter((p) => p.kind === kind));
    return svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' },
      ordered.map((one) => one.path));
  }

  item({ node, y }) {
    const kids = this.kids(node);
    const item = el('div', { role: 'treeitem', class: this.kind(node), tabindex: -1,
      'data-node': node.id, 'aria-level': node.depth + 1, 'aria-selected': 'false',
      'aria-expanded': kids.length ? String(this.open(node)) : null,
      'aria-setsize': node.up ? this.kids(node.up).length : 1,
      'aria-posinset': node.up ? this.kids(node.up).indexOf(node) + 1 : 1,
      'aria-label': this.label(node) }, node.up ? this.face(node) : 'start',
    kids.length ? el('span', { class: 'twist', 'data-twist': true },
      this.open(node) ? '\u25be' : `\u25b8 ${below(node)}`) : null);
    item.style.top = `${y * ROW}px`;
    item.style.left = `${node.up ? START + (node.depth - 1) * COLUMN : 0}px`;
    return item;
  }

  kind(node) {
    return ['node', node.up ? '' : 'root', node.survived ? 'survived' : 'pruned',
      this.tree.best.has(node.id) ? 'best' : ''].filter(Boolean).join(' ');
  }

  face(node) {
    const advantage = advantageOf(node);
    return [
      el('span', { class: `stem ${node.group.source}` }),
      el('span', { class: 'value' }, fixed(valueIn(node))),
      lean(advantage, this.reach),
      el('span', { class: `advantage ${side(advantage)}` }, signed(advantage, 2)),
      node.places.length > 1 ? el('span', { class: 'times' }, `\u00d7${node.places.length}`) : null,
      node.id === this.tree.record.best ? el('span', { class: 'star' }, '\u2605') : null,
    ];
  }

  label(node) {
    if (!node.up) return `Start of the episode, ${plural(this.tree.nodes.size - 1, 'node')} below`;
    const samples = node.places.length > 1 ? `, ${node.places.length} equal samples` : '';
    return `${moversOf(node)}, value ${fixed(valueIn(node))} by ${valuedBy(node)}, ` +
      `advantage ${signed(advantageOf(node))}, ${node.survived ? 'survived' : 'pruned'}${samples}` +
      (this.tree.best.has(node.id) ? ', on the best path' : '');
  }

  mark(focus) {
    this.marked?.setAttribute('aria-selected', 'false');
    if (this.marked) this.marked.tabIndex = -1;
    const item = this.items.get(this.chosen) ?? this.items.get(this.tree.root.id);
    item.setAttribute('aria-selected', String(item.dataset.node === this.chosen));
    item.tabIndex = 0;
    this.marked = item;
    if (focus) item.focus({ preventScroll: true });
    keepInView(item, $('canvas'), 34);
  }

  select(id, focus = true) {
    this.chosen = id;
    const node = this.tree.nodes.get(id);
    let changed = false;
    if (!this.pruned && pathTo(node).some((one) => one.up && !one.survived)) {
      this.pruned = changed = true;
      $('pruned').firstChild.data = prunedName(this);
    }
    for (const one of pathTo(node).slice(0, -1)) changed = this.folded.delete(one.id) || changed;
    if (changed) this.render(focus);
    else this.mark(focus);
    this.choose(id);
  }

  fold(node, closed) {
    if (closed) this.folded.add(node.id);
    else this.folded.delete(node.id);
    this.render(true);
  }

  click(event) {
    const item = event.target.closest('[role=treeitem]');
    if (!item) return;
    const node = this.tree.nodes.get(item.dataset.node);
    if (!('twist' in event.target.dataset)) return this.select(node.id);
    if (!this.open(node) || !pathTo(this.tree.nodes.get(this.chosen)).includes(node)) {
      return this.fold(node, this.open(node));
    }
    this.select(node.id);
    this.fold(node, true);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const node = this.tree.nodes.get(this.chosen);
    const at = this.order.indexOf(node), last = this.order.length - 1;
    const to = (place) => this.select(this.order[Math.max(0, Math.min(last, place))].id);
    const keys = {
      ArrowDown: () => to(at + 1), ArrowUp: () => to(at - 1), Home: () => to(0),
      End: () => to(last), ArrowRight: () => this.inward(node), ArrowLeft: () => this.outward(node),
      Enter: () => $('detail').focus(), ' ': () => this.kids(node).length &&
        this.fold(node, this.open(node)),
      '*': () => { this.folded.clear(); this.render(true); },
    };
    if (!keys[event.key]) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation();
  }

  inward(node) {
    if (!this.kids(node).length) return;
    if (!this.open(node)) this.fold(node, false);
    else this.select(this.kids(node)[0].id);
  }

  outward(node) {
    if (this.kids(node).length && this.open(node)) this.fold(node, true);
    else if (node.up) this.select(node.up.id);
  }

  toggle() {
    this.pruned = !this.pruned;
    const path = pathTo(this.tree.nodes.get(this.chosen));
    const cut = path.findIndex((node) => node.up && !node.survived);
    $('pruned').firstChild.data = prunedName(this);
    if (!this.pruned && cut > 0) this.select(path[cut - 1].id, false);
    this.render(false);
  }
}

const side = (advantage) => advantage < 0 ? 'bad' : advantage > 0 ? 'good' : '';

const cutOf = (tree) => [...tree.nodes.values()].filter((node) => node.up && !node.survived);
const prunedName = (view) =>
  `${view.pruned ? 'hide' : 'show'} ${count(cutOf(view.tree).length)} pruned `;

/** All nodes with something below them, but for those on the way to the chosen one. */
function branchesOff(tree, chosen) {
  const path = new Set(pathTo(tree.nodes.get(chosen)));
  return new Set([...tree.nodes.values()]
    .filter((node) => node.children.length && !path.has(node)).map((node) => node.id));
}

/** Who gave a node's value. A leaf's own is its final score. */
const valuedBy = (node) => node.group.source === 'leaf' && !node.children.length
  ? 'the final score' : SOURCES[node.group.source];
const SOURCES = { leaf: 'its leaves', judge: 'the judge', task: 'the task' };
const below = (node) => node.children.reduce((sum, kid) => sum + 1 + below(kid), 0);

/** An advantage as a bar to the left or to the right of its group's mean. */
function lean(advantage, reach) {
  const width = 30, x = scale(-reach, reach, 1, width - 1);
  const from = Math.min(x(0), x(advantage)), to = Math.max(x(0), x(advantage));
  return svg('svg', { width, height: 12, viewBox: `0 0 ${width} 12`, class: 'lean',
    'aria-hidden': 'true' },
  svg('rect', { class: side(advantage), x: from, y: 3,
    width: Math.max(0, to - from), height: 6 }),
  svg('line', { class: 'axis', x1: x(0), x2: x(0), y1: 0, y2: 12 }));
}
