// Stands in for the library that the dashboard draws its charts with: takes what the pages give it, demands that
// it can be drawn, and writes it down where the chart would be. Of a chart drawn again, all versions stay.
const Highcharts = (function () {
  const settings = { colors: [] };

  function demand(holds, what) {
    if (!holds) {
      throw new Error("chart: " + what);
    }
  }

  // The ends of a range, or the one value.
  function values(point) {
    if (Array.isArray(point)) {
      return point;
    }
    return [point !== null && typeof point === "object" ? point.y : point];
  }

  // What a page's own function says of a point.
  function said(formatter, what, given) {
    const text = formatter ? formatter.call(given) : "";
    demand(typeof text === "string" && !/\b(undefined|NaN|null)\b/.test(text), what + " says " + text);
    return text;
  }

  class Chart {
    constructor(options) {
      this.options = options;
      this.title = options.title.text;
      this.place = document.getElementById(options.chart.renderTo);
      demand(this.place, "no place " + options.chart.renderTo + " for " + this.title);
      this.place.textContent = "";
      this.series = options.series.map((one) => ({
        options: one,
        name: one.name,
        data: one.data.map((value) => {
          const point = { value };
          point.update = (value) => { point.value = value; };
          return point;
        }),
      }));
      this.redraw();
    }

    setTitle(title) {
      this.title = title.text;
    }

    redraw() {
      const lines = [this.title];
      for (const series of this.series) {
        demand(series.data.length > 0, this.title + " without data of " + series.name);
        series.data.forEach((point, number) => lines.push(this.line(series, point.value, number)));
      }
      for (const line of lines) {
        this.place.append(Object.assign(document.createElement("p"), { innerHTML: line }));
      }
    }

    line(series, value, number) {
      const type = series.options.type || this.options.chart.type;
      const numbers = values(value);
      const where = `${this.title}, ${series.name} ${number}`;
      demand(numbers.length === (type === "columnrange" ? 2 : 1), where + " for a " + type);
      demand(numbers.every(Number.isFinite), where + " is " + JSON.stringify(value));
      demand(type !== "columnrange" || numbers[0] <= numbers[1], where + " ends before it begins");
      demand(type !== "pie" || numbers[0] >= 0, where + " is negative");

      const named = value.name !== undefined;
      const axis = [].concat(this.options.xAxis || [])[0];
      const name = named ? value.name : axis.categories[number];
      demand(typeof name === "string" && name !== "", where + " has no name");
      const point = named ? value : { name, y: numbers[0] };
      const given = { point, series, x: name, y: point.y };
      const plot = (this.options.plotOptions || {})[type] || {};
      const label = said((plot.dataLabels || {}).formatter, where, given);
      const tip = said((this.options.tooltip || {}).formatter, where, given);
      return `${series.name}: ${name} = ${numbers.join(" to ")}<br>${label}<br>${tip}`;
    }
  }

  return {
    Chart,
    getOptions: () => settings,
    Color: (color) => {
      demand(/^#[0-9a-f]{6}$/.test(color), "no color " + color);
      return { brighten: () => ({ get: () => color }) };
    },
  };
})();
