'use strict';
// Elements and numbers. Text reaches the page as text nodes only, never as markup.

const $ = (id) => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';

function fill(node, props, kids) {
  for (const [name, value] of Object.entries(props)) {
    if (name === 'on') {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? '' : value);
    }
  }
  node.append(...kids.flat(Infinity).filter((kid) => kid !== null && kid !== undefined));
  return node;
}

const el = (name, props = {}, ...kids) => fill(document.createElement(name), props, kids);
const svg = (name, props = {}, ...kids) =>
  fill(document.createElementNS(SVG, name), props, kids);

// What steers a terminal, turns the reading direction, or can't be seen.
const UNSEEN = new RegExp(
  '[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b\\u200e\\u200f' +
  '\\u2028-\\u202e\\u2060-\\u206f\\ufeff]|[\\ud800-\\udfff]', 'u');

/** What models and tasks wrote, with marks in place of characters that no reader would see. */
function shown(text) {
  const found = document.createDocumentFragment();
  let plain = '';
  for (const char of String(text).replaceAll('\r\n', '\n')) {
    if (!UNSEEN.test(char)) {
      plain += char;
      continue;
    }
    const code = char.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
    found.append(plain, el('span', { class: 'unseen' }, `U+${code}`));
    plain = '';
  }
  found.append(plain);
  return found;
}

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
const minus = (text) => text.replace('-', '\u2212');
const fixed = (value, digits = 3) => isNumber(value) ? minus(value.toFixed(digits)) : '\u2013';
const signed = (value, digits = 3) =>
  isNumber(value) ? (value < 0 ? '' : '+') + fixed(value, digits) : '\u2013';
const count = (value) => isNumber(value) ? value.toLocaleString('en-GB') : '\u2013';
const dollars = (value) => !isNumber(value) ? '\u2013'
  : value === 0 ? '$0' : `$${value.toFixed(value >= 100 ? 2 : value >= 0.001 ? 4 : 6)}`;
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
const figure = (value) =>
  !isNumber(value) ? '\u2013'
    : Number.isInteger(value) || Math.abs(value) >= 1000 ? minus(count(Math.round(value)))
    : minus(Math.abs(value) < 1e-4 ? value.toExponential(1) : String(Number(value.toPrecision(4))));

/** A number of an axis: from 10,000 on as 20k and 1.5M. */
const compact = (value) => {
  const [size, unit] = Math.abs(value) >= 1e6 ? [1e6, 'M'] : Math.abs(value) >= 1e4 ? [1e3, 'k']
    : [1, ''];
  return `${figure(value / size)}${unit}`;
};

/** Replaces what an element shows; lists may nest, and hold nothing. */
const refill = (node, ...kids) => {
  node.replaceChildren(...kids.flat(Infinity).filter((kid) => kid !== null && kid !== undefined));
};

/** A table as papers set it: rules above and below, numbers to the right. */
function table(heads, rows, props = {}) {
  const cell = (name, content, place) =>
    el(name, {
      class: heads[place].number ? 'number' : null,
      scope: name === 'th' ? 'col' : null,
    }, content);
  return el('div', { class: 'scroll' }, el('table', props,
    el('thead', {}, el('tr', {}, heads.map((head, place) => cell('th', head.name, place)))),
    el('tbody', {}, rows.map((row) =>
      el('tr', {}, row.map((content, place) => cell('td', content, place)))))));
}

/** Details whose content is made when they are opened first. */
function folded(title, make, props = {}) {
  const body = el('div', {});
  const details = el('details', props, el('summary', {}, title), body);
  details.addEventListener('toggle', () => {
    if (details.open && !body.hasChildNodes()) body.append(make());
  });
  return details;
}
