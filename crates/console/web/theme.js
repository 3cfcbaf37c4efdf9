// Dark or light: as the system says, or as the person switched. The choice is kept; it is no secret.

const NAME = "baton-theme";
const ORDER = ["system", "light", "dark"];

/** @returns {string} */
export function theme() {
  try {
    return localStorage.getItem(NAME) ?? "system";
  } catch {
    return "system";
  }
}

export function apply() {
  const chosen = theme();
  if (chosen === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", chosen);
  const button = document.getElementById("theme");
  button?.setAttribute("aria-label", `Colours: ${chosen}. Switch`);
  button?.setAttribute("title", `Colours: ${chosen} (t)`);
}

export function next() {
  const chosen = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length] ?? "system";
  try {
    localStorage.setItem(NAME, chosen);
  } catch {
    // Without storage the choice holds for this look only.
  }
  if (chosen === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", chosen);
  apply();
}
