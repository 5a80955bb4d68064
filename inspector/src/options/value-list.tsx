/** The values of an option, for a `<select>`: in their groups, with nothing hidden in their names. */

import type { ReactNode } from "react";

import { spelledOut } from "../text/visible.js";
import type { OptionValue } from "./values.js";

export function ValueList({ values }: { readonly values: readonly OptionValue[] }): ReactNode {
  const groups = [...new Set(values.map(({ group }) => group))];
  return groups.map((group) => {
    const members = values.filter((each) => each.group === group).map(({ value, name }) => (
      <option key={value} value={value}>
        {spelledOut(name || value, "prose").slice(0, 80)}
      </option>
    ));
    return group === undefined ? (
      members
    ) : (
      <optgroup key={group} label={spelledOut(group, "prose").slice(0, 80)}>
        {members}
      </optgroup>
    );
  });
}
