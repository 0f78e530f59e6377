# The builder's own architecture compiles for the image's: nothing is emulated.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG RELEASE
ARG TARGETOS
ARG TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w -X main.release=${RELEASE}" -o /lasthop ./cmd/lasthop

FROM scratch
COPY --from=build /lasthop /lasthop
ENTRYPOINT ["/lasthop"]
