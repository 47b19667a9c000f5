// Runs before the first paint, so that a chosen theme does not flash. The choice is light, dark or that of the system.
{
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
