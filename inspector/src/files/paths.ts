/** Paths of the server's machine, as text. */

export interface Crumb {
  readonly name: string;
  readonly path: string;
}

/** The directories on the way to a path, the root first. */
export function crumbsOf(path: string): Crumb[] {
  const names = path.split("/").filter(Boolean);
  const crumbs = [{ name: "/", path: "/" }];
  names.forEach((name, at) => crumbs.push({ name, path: `/${names.slice(0, at + 1).join("/")}` }));
  return crumbs;
}

export function joined(folder: string, name: string): string {
  return folder.endsWith("/") ? folder + name : `${folder}/${name}`;
}

export function parentOf(path: string): string {
  return path.slice(0, path.lastIndexOf("/")) || "/";
}

export function nameOf(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1) || "/";
}
