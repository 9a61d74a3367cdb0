// Signing in at an identity provider: the browser goes there and comes back with a code, for which the server gives a token.

const WAITING = 'turnflow.signing-in';

const base64 = bytes => btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
const random = () => base64(crypto.getRandomValues(new Uint8Array(32)));

/** Where people sign in: { authorize, client_id, scope, issuer }; `null` if they do not. */
export async function provider() {
  try {
    const response = await fetch('/v1/sign-in', { cache: 'no-store', signal: AbortSignal.timeout(15000) });
    return (await response.json()).sign_in ?? null;
  } catch {
    return null;
  }
}

const comeBack = () => `${location.origin}/`;

/** Leaves for the provider. `keeps`: whether the token is kept when the browser is closed. */
export async function leave({ authorize, client_id, scope }, keeps) {
  // Browsers compute hashes only on pages that nobody can have changed on the way.
  if (!crypto.subtle) throw new Error('Signing in needs HTTPS.');
  const [state, nonce, verifier] = [random(), random(), random()];
  const hash = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier));
  sessionStorage.setItem(WAITING, JSON.stringify({ state, nonce, verifier, keeps }));
  const url = new URL(authorize);
  const fields = { response_type: 'code', client_id, scope, redirect_uri: comeBack(), state, nonce, code_challenge: base64(new Uint8Array(hash)), code_challenge_method: 'S256' };
  Object.entries(fields).forEach(([name, value]) => url.searchParams.set(name, value));
  location.assign(url);
}

/** The end of a sign-in, if the browser comes back from one: { token, keeps } or { problem }; `null` otherwise. */
export async function returned() {
  const given = new URLSearchParams(location.search);
  if (!given.has('state') || !(given.has('code') || given.has('error'))) return null;
  // The code is of no use to anybody who sees the address later.
  history.replaceState(null, '', '/');
  let waiting = null;
  try {
    waiting = JSON.parse(sessionStorage.getItem(WAITING) ?? 'null');
    sessionStorage.removeItem(WAITING);
  } catch { /* Nothing waits. */ }
  if (!waiting || waiting.state !== given.get('state')) return { problem: 'This sign-in was not begun here. Sign in again.' };
  if (given.has('error')) return { problem: `The identity provider has refused: ${given.get('error_description') ?? given.get('error')}` };
  const { nonce, verifier, keeps } = waiting;
  try {
    const body = JSON.stringify({ code: given.get('code'), verifier, nonce, redirect_uri: comeBack() });
    const response = await fetch('/v1/sign-in', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body, cache: 'no-store' });
    const told = await response.json();
    return response.ok ? { token: told.token, keeps } : { problem: told.error?.message ?? 'Signing in has failed.' };
  } catch {
    return { problem: 'The server cannot be reached.' };
  }
}
