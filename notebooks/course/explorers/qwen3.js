// A Qwen3 language model in the browser: safetensors, LoRA adapters, a byte-fallback BPE tokenizer, and the next token's logits.
// Plain typed arrays, on the page's own thread. It knows nothing about games, pages or servers.
// It is concatenated before the module that uses it (see `script` in course/policy_files.py), so it exports nothing.

/** Half-precision numbers by their 16 bits. */
let halves = null;
function halfTable() {
  halves ??= Float32Array.from({ length: 65536 }, (_, bits) => {
    const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -14 * (fraction / 1024);
  });
  return halves;
}

/**
 * Return name -> Float32Array of a safetensors file with float32, float16 or int8 tensors. The rows of a tensor are multiplied by
 * those of NAME_scale, if the file has it. bytes: a DataView or ArrayBuffer.
 */
function readSafetensors(bytes) {
  const { buffer, byteOffset: first, byteLength } = ArrayBuffer.isView(bytes) ? bytes : new DataView(bytes);
  const header = new DataView(buffer, first, byteLength).getUint32(0, true);
  const described = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, first + 8, header)));
  const tensors = {};
  delete described.__metadata__;
  for (const [name, { dtype, data_offsets: [from, to] }] of Object.entries(described)) {
    const raw = buffer.slice(first + 8 + header + from, first + 8 + header + to); // aligned, as typed arrays need
    if (dtype === "F32") tensors[name] = new Float32Array(raw);
    else if (dtype === "F16") tensors[name] = Float32Array.from(new Uint16Array(raw), (bits) => halfTable()[bits]);
    else if (dtype === "I8") tensors[name] = Float32Array.from(new Int8Array(raw));
    else throw new TypeError(`${name} is ${dtype}; expected F32, F16 or I8`);
  }
  for (const name of Object.keys(tensors).filter((each) => `${each}_scale` in tensors)) {
    const [tensor, rows] = [tensors[name], tensors[`${name}_scale`]];
    const width = tensor.length / rows.length;
    for (let i = 0; i < tensor.length; i++) tensor[i] *= rows[Math.floor(i / width)];
  }
  return tensors;
}

/** Return the weights with a LoRA adapter merged: W + scale B A for each matrix that the adapter has. */
function mergeAdapter(weights, adapter, scale) {
  const merged = { ...weights };
  for (const [name, a] of Object.entries(adapter)) {
    const target = name.match(/^base_model\.model\.(.+)\.lora_A\.weight$/)?.[1];
    if (!target) continue;
    const [b, w] = [adapter[name.replace("lora_A", "lora_B")], weights[`${target}.weight`].slice()];
    const inputs = w.length / (b.length / rankOf(a, b, w));
    const rank = a.length / inputs;
    for (let o = 0; o < w.length / inputs; o++) {
      for (let r = 0; r < rank; r++) {
        const factor = scale * b[o * rank + r];
        for (let i = 0; i < inputs; i++) w[o * inputs + i] += factor * a[r * inputs + i];
      }
    }
    merged[`${target}.weight`] = w;
  }
  return merged;
}

/** a: rank x inputs, b: outputs x rank, w: outputs x inputs. */
const rankOf = (a, b, w) => Math.round(Math.sqrt((a.length * b.length) / w.length));

/** A byte-fallback BPE tokenizer. vocab: token -> id; merges: pairs, best first; pattern: matches the pieces that are encoded separately. */
class Tokenizer {
  constructor({ vocab, merges, pattern }) {
    this.ids = new Map(Object.entries(vocab));
    this.tokens = new Map(Object.entries(vocab).map(([token, id]) => [id, token]));
    this.ranks = new Map(merges.map((pair, rank) => [pair.join("\0"), rank]));
    this.pattern = new RegExp(pattern, "gu");
  }

  /** Return the ids of a text. Control tokens that it spells out are encoded as plain text. */
  encode(text) {
    const pieces = [];
    let end = 0;
    for (const { 0: piece, index } of text.matchAll(this.pattern)) {
      if (index > end) pieces.push(text.slice(end, index));
      pieces.push(piece);
      end = index + piece.length;
    }
    if (end < text.length) pieces.push(text.slice(end));
    return pieces.flatMap((piece) => this.encodePiece(piece));
  }

  encodePiece(piece) {
    const bytes = (letter) => [...new TextEncoder().encode(letter)].map((b) => `<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`);
    const parts = [...piece].flatMap((letter) => (this.ids.has(letter) ? [letter] : bytes(letter)));
    for (;;) {
      let [best, at] = [Infinity, -1];
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]}\0${parts[i + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) return parts.map((part) => this.ids.get(part));
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
  }

  /** Return the ids of one user message and the opening of the answer, in ChatML. */
  prompt(text) {
    const [start, end] = [this.ids.get("<|im_start|>"), this.ids.get("<|im_end|>")];
    return [start, ...this.encode(`user\n${text}`), end, ...this.encode("\n"), start, ...this.encode("assistant\n")];
  }
}

/**
 * out[t][o] = x[t] . w[o] for `count` rows. Four rows by two outputs at a time, so that each loaded number is reused: x and
 * out have PADDING extra rows with meaningless contents.
 */
const PADDING = 3;
function project(out, x, w, count, inputs) {
  const outputs = w.length / inputs;
  for (let t = 0; t < count; t += 4) {
    const x0 = t * inputs, x1 = x0 + inputs, x2 = x1 + inputs, x3 = x2 + inputs;
    for (let o = 0; o < outputs; o += 2) {
      const w0 = o * inputs, w1 = w0 + inputs, to = t * outputs + o;
      let a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
      for (let i = 0; i < inputs; i++) {
        const u = w[w0 + i], v = w[w1 + i];
        let y = x[x0 + i]; a += y * u; b += y * v;
        y = x[x1 + i]; c += y * u; d += y * v;
        y = x[x2 + i]; e += y * u; f += y * v;
        y = x[x3 + i]; g += y * u; h += y * v;
      }
      out[to] = a; out[to + 1] = b; out[to + outputs] = c; out[to + outputs + 1] = d;
      out[to + 2 * outputs] = e; out[to + 2 * outputs + 1] = f; out[to + 3 * outputs] = g; out[to + 3 * outputs + 1] = h;
    }
  }
}

/** Divide each of `count` vectors of `size` by its root mean square, times the gain. to may be from. */
function normalise(to, from, gain, count, size, epsilon) {
  for (let t = 0; t < count; t++) {
    let sum = 0;
    for (let i = t * size; i < (t + 1) * size; i++) sum += from[i] * from[i];
    const factor = 1 / Math.sqrt(sum / size + epsilon);
    for (let i = 0; i < size; i++) to[t * size + i] = from[t * size + i] * factor * gain[i];
  }
}

/** A Qwen3 decoder with tied embeddings. config: as in transformers' config.json. Keeps keys and values of the last prompt. */
class Qwen3 {
  constructor(config, weights) {
    const { num_hidden_layers: layers, num_key_value_heads: groups, head_dim: dim, rope_parameters: { rope_theta: theta } } = config;
    Object.assign(this, { config, weights, ids: [], longest: config.use_sliding_window ? config.sliding_window : 1024 });
    this.cache = Array.from({ length: layers }, () => [0, 1].map(() => new Float32Array((this.longest + PADDING) * groups * dim)));
    this.angles = Array.from({ length: dim / 2 }, (_, i) => theta ** ((-2 * i) / dim));
  }

  rotate(x, count, heads, first) {
    const dim = this.config.head_dim;
    for (let t = 0; t < count; t++) {
      for (let i = 0; i < dim / 2; i++) {
        const [cos, sin] = [Math.cos((first + t) * this.angles[i]), Math.sin((first + t) * this.angles[i])];
        for (let at = t * heads * dim + i; at < (t + 1) * heads * dim; at += dim) {
          const [p, q] = [x[at], x[at + dim / 2]];
          x[at] = p * cos - q * sin;
          x[at + dim / 2] = q * cos + p * sin;
        }
      }
    }
  }

  /** out[t] = attention of the queries at positions first, first + 1, ... to all positions up to their own. */
  attend(out, q, [keys, values], count, first) {
    const { num_attention_heads: heads, num_key_value_heads: groups, head_dim: dim } = this.config;
    const [scale, scores] = [1 / Math.sqrt(dim), new Float64Array(first + count)];
    out.fill(0, 0, count * heads * dim);
    for (let t = 0; t < count; t++) {
      for (let head = 0; head < heads; head++) {
        const [from, group] = [(t * heads + head) * dim, Math.floor((head * groups) / heads)];
        let [top, total] = [-Infinity, 0];
        for (let p = 0; p <= first + t; p++) {
          let sum = 0;
          for (let i = 0; i < dim; i++) sum += q[from + i] * keys[(p * groups + group) * dim + i];
          scores[p] = sum * scale;
          if (scores[p] > top) top = scores[p];
        }
        for (let p = 0; p <= first + t; p++) total += scores[p] = Math.exp(scores[p] - top);
        for (let p = 0; p <= first + t; p++) {
          const share = scores[p] / total;
          for (let i = 0; i < dim; i++) out[from + i] += share * values[(p * groups + group) * dim + i];
        }
      }
    }
  }

  /** Return the logits (V) of the token after `ids`. The prefix shared with the last call is not recomputed. */
  logits(ids) {
    const { hidden_size: size, num_key_value_heads: groups, head_dim: dim, num_attention_heads: heads, rms_norm_eps: epsilon } = this.config;
    if (ids.length > this.longest) throw new RangeError(`the prompt has ${ids.length} tokens; at most ${this.longest} fit`);
    let start = 0;
    while (start < ids.length - 1 && ids[start] === this.ids[start]) start++;
    const count = ids.length - start;
    const floats = (width) => new Float32Array((count + PADDING) * width);
    const [x, normal, q, mixed, y] = [floats(size), floats(size), floats(heads * dim), floats(heads * dim), floats(size)];
    const [gate, up] = [floats(this.config.intermediate_size), floats(this.config.intermediate_size)];
    const embedding = this.weights["model.embed_tokens.weight"];
    for (let t = 0; t < count; t++) x.set(embedding.subarray(ids[start + t] * size, (ids[start + t] + 1) * size), t * size);
    this.cache.forEach((cached, layer) => {
      const w = (name) => this.weights[`model.layers.${layer}.${name}.weight`];
      const [keys, values] = cached.map((all) => all.subarray(start * groups * dim));
      normalise(normal, x, w("input_layernorm"), count, size, epsilon);
      project(keys, normal, w("self_attn.k_proj"), count, size);
      project(values, normal, w("self_attn.v_proj"), count, size);
      normalise(keys, keys, w("self_attn.k_norm"), count * groups, dim, epsilon);
      this.rotate(keys, count, groups, start);
      // After the last layer only the last position is read.
      const skipped = layer === this.cache.length - 1 ? count - 1 : 0;
      const [rest, own] = [count - skipped, x.subarray(skipped * size)];
      project(q, normal.subarray(skipped * size), w("self_attn.q_proj"), rest, size);
      normalise(q, q, w("self_attn.q_norm"), rest * heads, dim, epsilon);
      this.rotate(q, rest, heads, start + skipped);
      this.attend(mixed, q, cached, rest, start + skipped);
      project(y, mixed, w("self_attn.o_proj"), rest, heads * dim);
      for (let i = 0; i < rest * size; i++) own[i] += y[i];
      normalise(normal, own, w("post_attention_layernorm"), rest, size, epsilon);
      project(gate, normal, w("mlp.gate_proj"), rest, size);
      project(up, normal, w("mlp.up_proj"), rest, size);
      for (let i = 0; i < rest * this.config.intermediate_size; i++) up[i] *= gate[i] / (1 + Math.exp(-gate[i]));
      project(y, up, w("mlp.down_proj"), rest, this.config.intermediate_size);
      for (let i = 0; i < rest * size; i++) own[i] += y[i];
    });
    this.ids = [...ids];
    const logits = new Float32Array((1 + PADDING) * this.config.vocab_size);
    normalise(normal, x.subarray((count - 1) * size), this.weights["model.norm.weight"], 1, size, epsilon);
    project(logits, normal, embedding, 1, size);
    return logits.subarray(0, this.config.vocab_size);
  }
}
