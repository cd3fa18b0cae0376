// Asks for the token and exchanges it for a cookie, so that no address contains it.
const form = document.getElementById("form"), said = document.getElementById("said");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  said.textContent = "";
  const answer = await fetch("/login", {
    method: "POST", headers: { "content-type": "application/json" },
    body: JSON.stringify({ token: document.getElementById("token").value }),
  }).catch(() => null);
  if (answer?.ok) location.replace("/");
  else said.textContent = answer ? (await answer.json()).error : "the workbench does not answer";
});
