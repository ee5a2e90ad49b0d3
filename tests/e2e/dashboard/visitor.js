// What a visitor does: opens all that is folded and presses the buttons of charts, and complains of what does
// not work.
(function () {
  const bad = [];
  const note = (what) => {
    bad.push(what);
    document.documentElement.setAttribute("data-bad", bad.join(" | "));
  };
  window.addEventListener("error", (e) => note(e.message || "cannot load " + (e.target.src || e.target.href)), true);
  window.alert = (text) => note("alert: " + text);
  $(document).ajaxError((_, answer, request) => note(request.url + ": " + answer.status));
  $(window).on("load", () => {
    const folded = $("#jobs_tabs [data-bs-toggle=tab], .accordion-button.collapsed");
    const buttons = $("#job_distribution_options a, #time_chart_options a");
    [...folded, ...buttons].forEach((one, number) => setTimeout(() => one.click(), 800 * number));
  });
})();
