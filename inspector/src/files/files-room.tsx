import type { ReactNode } from "react";

export function FilesRoom({ path }: { readonly path: string | undefined }): ReactNode {
  return <p>Files {path}</p>;
}
