// Requests to the server, with the API key if it wants one. The key lives until the tab is closed.

export async function fetchJson(path, { method = "GET", body, name = "API key" } = {}) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  const key = sessionStorage.getItem("key");
  if (key) headers["x-api-key"] = key;
  const answer = await fetch(path, { method, headers, body });
  if (answer.status === 401) {
    const given = prompt(name);
    if (given) { sessionStorage.setItem("key", given.trim()); return fetchJson(path, { method, body, name }); }
  }
  const text = await answer.text();
  let data;
  try { data = JSON.parse(text); } catch { data = text; }
  return { status: answer.status, ok: answer.ok, data };
}

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export async function ask(path, body, name) {
  const options = body === undefined ? { name } : { method: "POST", body: JSON.stringify(body), name };
  const { ok, status, data } = await fetchJson(path, options);
  if (!ok) throw new Problem(status, data.error || `status ${status}`);
  return data;
}
