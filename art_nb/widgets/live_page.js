// The live page of a server in a frame. Only its own origin may frame the page, so it is loaded through JupyterLab's proxy
// (jupyter-server-proxy, at proxy/PORT/ below JupyterLab's URL); without a proxy, a link is shown.

/** The server's URL through JupyterLab's proxy, or null if that does not reach it. */
async function proxied(address) {
  const config = document.getElementById("jupyter-config-data");
  if (!config || !["127.0.0.1", "localhost"].includes(address.hostname)) return null;
  const near = new URL(`${JSON.parse(config.textContent).baseUrl}proxy/${address.port}/`, location.href);
  const answer = await fetch(new URL("healthz", near)).catch(() => null);
  return answer?.ok && (await answer.text()) === '{"status":"ok"}' ? near : null;
}

async function render({ model, el }) {
  const { root, stop } = mount(el, "live", () => {});
  const address = new URL(model.get("address"));
  const near = await proxied(address);
  const page = near ?? address;
  page.hash = new URLSearchParams({ code: model.get("code") });
  const seen = "color: var(--an-blue); text-decoration: underline";
  const attrs = { href: page, target: "_blank", rel: "noopener", style: seen };
  const link = h("a", attrs, near ? "in a new tab" : model.get("address"));
  const text = near ? "Open it " : "The live page of the server: ";
  root.append(h("p", { class: "an-link", style: "margin: 0 0 .25rem" }, text, link));
  if (!near) return stop;
  const look = "width: 100%; height: 560px; resize: vertical; overflow: auto; border: 1px solid #8888; border-radius: 8px";
  root.append(h("iframe", { src: page, title: "The live page of the server", class: "an-page", style: look }));
  return stop;
}

export default { render };
