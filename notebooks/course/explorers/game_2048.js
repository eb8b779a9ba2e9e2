// 2048 in the browser, with the rules of environments/game_2048: the same seeds give the same tiles. A board is an array of 16 tiles.

/** Python's `random.Random(seed).random`, for a whole number below 2**32 (Mersenne twister, MT19937). */
function pythonRandom(seed) {
  const state = new Uint32Array(624);
  const mix = (i, factor) => Math.imul(state[i - 1] ^ (state[i - 1] >>> 30), factor);
  state[0] = 19650218;
  for (let i = 1; i < 624; i++) state[i] = mix(i, 1812433253) + i;
  let i = 1;
  const wrap = () => { if (++i >= 624) [state[0], i] = [state[623], 1]; };
  for (let k = 0; k < 624; k++) { state[i] = (state[i] ^ mix(i, 1664525)) + seed; wrap(); }
  for (let k = 0; k < 623; k++) { state[i] = (state[i] ^ mix(i, 1566083941)) - i; wrap(); }
  state[0] = 0x80000000;
  let at = 624;
  const word = () => {
    if (at === 624) {
      for (let k = 0; k < 624; k++) {
        const y = (state[k] & 0x80000000) | (state[(k + 1) % 624] & 0x7fffffff);
        state[k] = state[(k + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
      }
      at = 0;
    }
    let y = state[at++];
    y ^= y >>> 11; y ^= (y << 7) & 0x9d2c5680; y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  };
  return () => ((word() >>> 5) * 67108864 + (word() >>> 6)) / 9007199254740992;
}

const MOVES = ["left", "right", "up", "down"];
// For each move the cells of its four lines, from the side to which the tiles slide.
const LINES_OF = {
  left: (line, k) => 4 * line + k, right: (line, k) => 4 * line + 3 - k, up: (line, k) => 4 * k + line, down: (line, k) => 4 * (3 - k) + line,
};

/** Return { board, gained }: the board after a move and before the new tile, and the sum of the tiles made by merging. */
function slide(board, move) {
  const [moved, cell] = [new Array(16).fill(0), LINES_OF[move]];
  let gained = 0;
  for (let line = 0; line < 4; line++) {
    let [to, mergeable] = [0, false];
    for (let k = 0; k < 4; k++) {
      const tile = board[cell(line, k)];
      if (!tile) continue;
      if (mergeable && moved[cell(line, to - 1)] === tile) {
        moved[cell(line, to - 1)] = 2 * tile;
        gained += 2 * tile;
        mergeable = false;
      } else {
        moved[cell(line, to++)] = tile;
        mergeable = true;
      }
    }
  }
  return { board: moved, gained };
}

const legalMoves = (board) => MOVES.filter((move) => slide(board, move).board.some((tile, i) => tile !== board[i]));

function spawn(board, random) {
  const empty = board.flatMap((tile, i) => (tile ? [] : [i]));
  const [place, tile] = [Math.floor(random() * empty.length), random() < 0.1 ? 4 : 2];
  return board.with(empty[place], tile);
}

const cornerRule = (board) => ["down", "left", "right", "up"].find((move) => legalMoves(board).includes(move));

/** One game. Attributes: board, moves, endedBy (null, "won", "stuck", "illegal" or "malformed"). start: a board, or none. */
class Game2048 {
  constructor(seed, winningTile, start) {
    Object.assign(this, { random: pythonRandom(seed), winningTile, moves: 0, endedBy: null });
    const first = spawn(spawn(new Array(16).fill(0), this.random), this.random);
    this.board = start ?? first;
    if (Math.max(...this.board) >= winningTile) this.endedBy = "won";
    else if (!legalMoves(this.board).length) this.endedBy = "stuck";
  }

  move(answer) {
    if (!MOVES.includes(answer)) { this.endedBy = "malformed"; return; }
    const { board, gained } = slide(this.board, answer);
    if (board.every((tile, i) => tile === this.board[i])) { this.endedBy = "illegal"; return; }
    this.board = spawn(board, this.random);
    this.moves += 1;
    if (gained >= this.winningTile && Math.max(...this.board) >= this.winningTile) this.endedBy = "won";
    else if (!legalMoves(this.board).length) this.endedBy = "stuck";
  }
}

const RULES_2048 = {
  columns: 4,
  answers: MOVES,
  marks: (winning) => [0, ...Array.from({ length: Math.log2(winning) }, (_, i) => 2 ** (i + 1))],
  show: (tile) => (tile ? String(tile) : ""),
  legal: legalMoves,
  refuse: () => null,
  /** Return why the game is over on this board, or null. */
  over(board, winning) {
    if (Math.max(...board) >= winning) return `The game is won: a tile has reached ${winning}.`;
    return legalMoves(board).length ? null : "The game is over: no move is left.";
  },
  render: (board) => [0, 4, 8, 12].map((i) => board.slice(i, i + 4).map((tile) => tile || ".").join(" ")).join("\n"),
};
