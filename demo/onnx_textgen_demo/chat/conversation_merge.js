// One conversation that was changed in two tabs of the browser: the result has the messages of both.
// Conversations are as Python writes them. Messages are only appended; of those that exist, only one that grows changes.

const textOf = (value) => // the same for the same content, whatever the order of its names
  JSON.stringify(value, (_, each) => (each?.constructor === Object ? Object.fromEntries(Object.entries(each).sort()) : each));
const isSame = (one, other) => textOf(one) === textOf(other);
const hasSameMessages = (one, other) => isSame([one?.nodes, one?.system], [other?.nodes, other?.system]);

// `base`: the version that both came from. `kept`: what another tab saved; its messages keep their places. `mine`: this tab's.
const merged = (base, kept, mine) => {
  const known = Math.min(base.nodes.length, kept.nodes.length);
  const moved = (place) => (place < known ? place : place - known + kept.nodes.length);
  const isMine = (place) => place < known && place < mine.nodes.length && !isSame(mine.nodes[place], base.nodes[place]);
  const shared = kept.nodes.map((node, place) => (isMine(place) ? mine.nodes[place] : node));
  const added = mine.nodes.slice(known).map((node) => ({ ...node, parent: moved(node.parent) }));
  const { system } = isSame(mine.system, base.system) ? kept : mine;
  return { ...kept, system, nodes: [...shared, ...added], leaf: moved(mine.leaf) };
};

// The last message of the latest branch through a message.
const latestThrough = (nodes, place) => {
  const branch = new Set([place]);
  nodes.forEach((node, index) => { if (branch.has(node.parent)) branch.add(index); });
  return Math.max(...branch);
};
